// A member of a consumer group with nothing but the .proto files: commits, and a rebalance survived.
//
//     node integration/node/subscribe.js 127.0.0.1:7070 proto
'use strict';

const path = require('path');
const modules = process.env.TALWEG_NODE_MODULES || path.join(__dirname, 'node_modules');
const grpc = require(path.join(modules, '@grpc/grpc-js'));
const loader = require(path.join(modules, '@grpc/proto-loader'));

const PARTITIONS = 4;
const EACH = 200;
const DEADLINE_MS = 30_000;

const deadline = () => Date.now() + DEADLINE_MS;
const unary = (client, method, request) => new Promise((resolve, reject) =>
  client[method](request, { deadline: deadline() }, (error, answer) => (error ? reject(error) : resolve(answer))));

// Reads as it comes; gives up what it is asked for, commits what it has read.
class Member {
  constructor(client, group, topic) {
    this.owned = new Set();
    this.seen = new Set();
    this.stored = new Map();
    this.stream = client.Subscribe();
    this.ended = new Promise((resolve) => this.stream.on('end', resolve));
    this.stream.on('error', (error) => { this.error = error; });
    this.stream.on('data', (frame) => this.on(frame));
    this.stream.write({ open: {
      group, topics: [topic], client_id: 'node', form: 'FORM_RECORDS', credit: { bytes: 4 << 20, records: 10_000 },
    } });
  }

  on(frame) {
    const got = frame[frame.frame];
    switch (frame.frame) {
      case 'assigned':
        got.partitions.forEach((p) => this.owned.add(p.partition));
        break;
      case 'records': {
        const { records, position: { topic_id, partition } } = got;
        records.forEach((r) => this.seen.add(`${partition}:${r.offset}`));
        const offset = Number(records[records.length - 1].offset) + 1;
        this.stream.write({ commit: { commit_id: this.seen.size, next: [{ topic_id, partition, offset }] } });
        const bytes = records.reduce((sum, r) => sum + r.value.length + 32, 0);
        this.stream.write({ credit: { bytes, records: records.length } });
        break;
      }
      case 'revoking':
        got.partitions.forEach((p) => this.owned.delete(p.partition));
        this.stream.write({ revoked: { partitions: got.partitions } });
        break;
      case 'committed':
        if (got.error) this.error = new Error(got.error.message);
        got.offsets.forEach((o) => this.stored.set(o.partition, Number(o.offset)));
        break;
      case 'error': case 'partition_error': case 'gap':
        this.error = new Error(JSON.stringify(frame));
        break;
      default:
    }
  }

  async leave() {
    this.stream.write({ leave: {} });
    await this.ended;
  }
}

async function until(what, members, hope) {
  const late = deadline();
  while (!hope()) {
    for (const member of members) if (member.error) throw member.error;
    if (Date.now() > late) throw new Error(`${what}: ${members.map((m) => `${[...m.owned]} ${m.seen.size}`)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function produce(client, topic) {
  return new Promise((resolve, reject) => {
    const stream = client.Produce();
    let acked = 0;
    stream.on('error', reject);
    stream.on('data', (frame) => {
      if (frame.frame === 'refusal') reject(new Error(JSON.stringify(frame.refusal)));
      if (frame.frame === 'records_ack' && (acked += frame.records_ack.sequences.length) === EACH) stream.end();
    });
    stream.on('end', resolve);
    stream.write({ open: { client_id: 'node', acks: 'ACKS_ALL' } });
    const records = Array.from({ length: EACH }, (_, n) => ({ partition: n % PARTITIONS, value: Buffer.from(`${n}`) }));
    stream.write({ records: { topic, first_sequence: 0, records } });
  });
}

async function main(address, protos) {
  const files = ['topics', 'produce', 'subscribe', 'offsets', 'groups'].map((name) => `talweg/v1/${name}.proto`);
  const options = { includeDirs: [protos], keepCase: true, longs: String, enums: String, oneofs: true };
  const { talweg: { v1 } } = grpc.loadPackageDefinition(loader.loadSync(files, options));
  const service = (name) => new v1[name](address, grpc.credentials.createInsecure());
  const topics = service('TopicService');
  const topic = `node-${process.pid}-${Date.now()}`;
  await unary(topics, 'CreateTopic', { name: topic, partitions: PARTITIONS });
  await produce(service('ProduceService'), topic);
  const subscribe = service('SubscribeService');
  const first = new Member(subscribe, 'node', topic);
  await until('all by the first', [first], () => first.seen.size === EACH);
  const second = new Member(subscribe, 'node', topic);
  const both = [first, second];
  await until('half each', both, () => both.every((m) => m.owned.size === 2));
  await produce(service('ProduceService'), topic);
  await until('all by both', both, () => new Set([...first.seen, ...second.seen]).size === 2 * EACH);
  const end = (2 * EACH) / PARTITIONS;
  const done = () => both.flatMap((m) => [...m.stored.values()]).filter((offset) => offset === end).length;
  await until('all is committed', both, () => done() === PARTITIONS);
  for (const member of both) await member.leave();
  const stored = await unary(service('OffsetService'), 'FetchOffsets', { group: 'node', topic });
  const offsets = stored.offsets.map((o) => Number(o.offset));
  if (offsets.length !== PARTITIONS || offsets.some((offset) => offset !== end)) throw new Error(`stored ${offsets}`);
  await unary(topics, 'DeleteTopic', { name: topic });
  console.log(`ok: ${2 * EACH} records, a second member took half, every offset committed`);
}

main(process.argv[2] || '127.0.0.1:7070', process.argv[3] || path.join(__dirname, '../../proto'))
  .then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
