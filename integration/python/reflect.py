"""What grpcurl does: find a method by reflection, build its request from the descriptor, call it."""

import sys
import uuid

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

EXPECTED = {
    "talweg.v1.TopicService", "talweg.v1.ProduceService", "talweg.v1.FetchService", "talweg.v1.SubscribeService",
    "talweg.v1.ProducerService", "talweg.v1.OffsetService", "talweg.v1.GroupService", "talweg.v1.TransactionService",
    "talweg.v1.ClusterService", "grpc.health.v1.Health",
}


def main(address):
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        assert EXPECTED <= services, f"missing: {EXPECTED - services}"
        assert not any(s.startswith(("talweg.controller", "talweg.storage")) for s in services), services
        pool = DescriptorPool(database)

        def call(path, **fields):
            service, method = path.split("/")
            found = pool.FindServiceByName(service).FindMethodByName(method)
            request, response = GetMessageClass(found.input_type), GetMessageClass(found.output_type)
            stub = channel.unary_unary(f"/{path}", request.SerializeToString, response.FromString)
            return stub(request(**fields), timeout=30)

        assert call("grpc.health.v1.Health/Check").status == 1
        name = f"reflect-{uuid.uuid4().hex[:8]}"
        created = call("talweg.v1.TopicService/CreateTopic", name=name, partitions=2)
        described = call("talweg.v1.TopicService/DescribeTopic", name=name)
        assert described.topic.topic_id == created.topic.topic_id and len(described.partitions) == 2
        call("talweg.v1.TopicService/DeleteTopic", name=name)
        try:
            call("talweg.v1.TransactionService/BeginTransaction")
            raise AssertionError("transactions are not built and must say so")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED and error.details(), error
    print(f"ok: {len(services)} services by reflection")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070")
