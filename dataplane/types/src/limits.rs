//! The one table of limits. Every hop enforces these through shared code, so
//! that what one hop accepted the next can carry.

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// `max.message.bytes`: encoded bytes of one record batch, header included.
pub const MAX_MESSAGE_BYTES_RANGE: (u32, u32) = (KIB, 3 * MIB);
pub const MAX_MESSAGE_BYTES_DEFAULT: u32 = MIB;
/// `max.record.bytes`: key + value + header names and values, unpacked.
pub const MAX_RECORD_BYTES_RANGE: (u32, u32) = (1, 3 * MIB);
pub const MAX_RECORD_BYTES_DEFAULT: u32 = MIB;
/// Payload of one data-stream frame; more only to carry a single batch or record.
pub const FRAME_PAYLOAD_BYTES: u32 = MIB;
/// Envelope around the payload.
pub const FRAME_ENVELOPE_BYTES: u32 = 4 * KIB;
/// No gRPC message is larger, so that default stubs (4 MiB) work.
pub const GRPC_MESSAGE_BYTES: u32 = 4 * MIB - 1;
/// `max.unpacked.batch.bytes`: a batch after decompression.
pub const UNPACKED_BATCH_BYTES_DEFAULT: u32 = 16 * MIB;
pub const UNPACKED_BATCH_BYTES_MAX: u32 = 64 * MIB;
/// Records in one batch. The smallest record takes 7 bytes, so this bounds
/// index memory rather than payload.
pub const BATCH_RECORDS_MAX: u32 = 1_000_000;
/// Headers of one record.
pub const RECORD_HEADERS_MAX: u32 = 1_000;

/// What a Produce stream's `opened` frame grants: unanswered bytes and records.
pub const PRODUCE_CREDIT_BYTES: u64 = 8 * MIB as u64;
pub const PRODUCE_CREDIT_RECORDS: u64 = 10_000;
/// The least that grants shrink to as streams of a connection grow in number.
pub const PRODUCE_CREDIT_BYTES_MIN: u64 = MIB as u64;
/// The most credit a client may have outstanding on one Fetch stream.
pub const FETCH_CREDIT_BYTES_MAX: u64 = 256 * MIB as u64;
pub const FETCH_CREDIT_RECORDS_MAX: u64 = 100_000_000;
/// Partitions on one Fetch stream.
pub const FETCH_PARTITIONS_MAX: usize = 10_000;
/// Unanswered batches per producer session and partition.
pub const IN_FLIGHT_BATCHES: usize = 5;
/// Batches remembered per producer session to recognise a repeat.
pub const REMEMBERED_BATCHES: usize = 5;

/// Thin form: bytes of a batch that the gateway packs, and its linger.
pub const PACK_BATCH_BYTES: u32 = 64 * KIB;
pub const PACK_LINGER_MS: u64 = 10;

/// Idempotency keys kept per partition, and a key's length in bytes.
pub const IDEMPOTENCY_KEYS_MAX: usize = 100_000;
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;
/// The record header that carries an idempotency key; hidden from thin and
/// HTTP readers.
pub const IDEMPOTENCY_HEADER: &str = "__talweg-idempotency-key";
/// `X-Producer-Id` in bytes.
pub const PRODUCER_NAME_BYTES_MAX: usize = 128;
/// Producer ids from here on are derived from names; blocks stay below.
pub const DERIVED_PRODUCER_ID_BASE: i64 = 1 << 62;
/// Ids in one producer-id block given to a gateway.
pub const PRODUCER_ID_BLOCK: i64 = 1_000;

/// Memory of the map from keys to newest offsets in one round of compaction; a
/// round that would need more covers less of the log.
pub const COMPACTION_MAP_BYTES: usize = 64 << 20;

/// Topic and group names, in bytes.
pub const NAME_BYTES_MAX: usize = 249;
pub const PARTITIONS_PER_TOPIC_MAX: u32 = 10_000;
pub const PARTITIONS_PER_NODE_MAX: u32 = 10_000;
/// Replicas of a partition.
pub const REPLICATION_FACTOR_MAX: u32 = 7;

/// Members of one consumer group.
pub const GROUP_MEMBERS_MAX: usize = 5_000;
/// Topics that one member names, and the bytes of a topic pattern.
pub const SUBSCRIBED_TOPICS_MAX: usize = 1_000;
pub const TOPIC_PATTERN_BYTES_MAX: usize = 1_024;
/// Memory of one compiled topic pattern.
pub const TOPIC_PATTERN_COMPILED_BYTES_MAX: usize = 256 * 1024;
/// Instance id, client id and rack of a member, in bytes.
pub const MEMBER_TEXT_BYTES_MAX: usize = 249;
/// Offsets in one commit, reset or deletion, and the text stored with an offset.
pub const COMMIT_OFFSETS_MAX: usize = 10_000;
pub const COMMIT_METADATA_BYTES_MAX: usize = 4_096;
/// Commits of one Subscribe stream without an answer.
pub const COMMITS_WAITING_MAX: usize = 1_000;
/// Failed records of one Subscribe stream that are not passed yet, and the reason
/// given for one, in bytes.
pub const FAILED_RECORDS_MAX: usize = 1_000;
pub const FAILURE_REASON_BYTES_MAX: usize = 1_024;
/// Back-off before each retry, milliseconds; each is jittered by a fifth.
pub const RETRY_BACKOFF_MS_DEFAULT: [u32; 2] = [60_000, 600_000];
pub const RETRY_BACKOFF_MS_MAX: u32 = 7 * 24 * 60 * 60 * 1000;
pub const RETRY_BACKOFFS_MAX: usize = 10;
/// A member's time-outs: silence, giving up partitions, processing one delivery.
pub const MEMBER_SESSION_MS_DEFAULT: u32 = 45_000;
pub const MEMBER_SESSION_MS_DEFAULT_HTTP: u32 = 30_000;
pub const MEMBER_SESSION_MS_RANGE: (u32, u32) = (100, 30 * 60 * 1000);
pub const REBALANCE_MS_DEFAULT: u32 = 60_000;
pub const REBALANCE_MS_RANGE: (u32, u32) = (100, 60 * 60 * 1000);
pub const PROCESSING_MS_DEFAULT: u32 = 5 * 60 * 1000;
pub const PROCESSING_MS_RANGE: (u32, u32) = (100, 24 * 60 * 60 * 1000);
/// Attempts at one record before it counts as failed.
pub const ATTEMPTS_DEFAULT: u32 = 3;
pub const ATTEMPTS_RANGE: (u32, u32) = (1, 100);

/// Decisions of one coordinator shard that wait for an append, and their bytes.
pub const SHARD_WAITING_MAX: usize = 20_000;
pub const SHARD_WAITING_BYTES_MAX: usize = 16 * MIB as usize;

/// Stored keys of a group that one decision forgets: a tombstone takes some 300 bytes
/// of a batch. What is more goes with the next ones.
pub const FORGOTTEN_AT_ONCE_MAX: usize = 2_000;

/// Answers to one gateway that wait for it to read, and their bytes; beyond it is cut.
pub const LINK_QUEUE_MAX: usize = 16_384;
pub const LINK_QUEUE_BYTES_MAX: usize = 64 * MIB as usize;
/// Requests that wait for one coordinator shard to look at them, and those of one
/// group that wait for a leader's word about a commit.
pub const SHARD_MAILBOX_MAX: usize = 8_192;
pub const GROUP_PARKED_MAX: usize = 1_024;
/// The bytes of those of all groups of a shard.
pub const SHARD_PARKED_BYTES_MAX: usize = 16 * MIB as usize;

/// Between two answers of a lag that is watched, milliseconds.
pub const WATCH_LAG_MS_RANGE: (u32, u32) = (100, 60 * 60 * 1000);

/// HTTP: records and bytes of one answer, and the longest wait.
pub const HTTP_RECORDS_MAX: u32 = 500;
pub const HTTP_BYTES_DEFAULT: u32 = MIB;
pub const HTTP_WAIT_MS_MAX: u64 = 30_000;

/// Heartbeat frames on idle streams: between these, jittered.
pub const HEARTBEAT_MS_RANGE: (u64, u64) = (10_000, 15_000);
/// Delivery time-out of a Produce stream.
pub const DELIVERY_TIMEOUT_MS_DEFAULT: u64 = 30_000;
pub const DELIVERY_TIMEOUT_MS_RANGE: (u64, u64) = (100, 15 * 60 * 1000);
/// Long-poll wait of a Fetch.
pub const NODE_SESSION_MS_DEFAULT: u64 = 3_000;

const _: () = assert!(MAX_MESSAGE_BYTES_RANGE.1 + FRAME_ENVELOPE_BYTES < GRPC_MESSAGE_BYTES);
const _: () = assert!(MAX_RECORD_BYTES_RANGE.1 + FRAME_ENVELOPE_BYTES < GRPC_MESSAGE_BYTES);
