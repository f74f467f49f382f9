//! Request bodies. The order of the fields is the wire's.

use kafka_protocol::messages::ApiKey;

use super::Kind::{Blob, Structs, Text, TextArray};
use super::group_request as group;
use super::{BOOL, I8, I16, I32, I32_ARRAY, I64, Schema, UUID, always, between, from, tagged};

/// The request body of an API, `None` if we have no row for it.
pub(crate) fn request_schema(key: ApiKey) -> Option<&'static Schema> {
    Some(match key {
        ApiKey::Produce => &PRODUCE,
        ApiKey::Fetch => &FETCH,
        ApiKey::ListOffsets => &LIST_OFFSETS,
        ApiKey::Metadata => &METADATA,
        ApiKey::ApiVersions => &API_VERSIONS,
        ApiKey::CreateTopics => &CREATE_TOPICS,
        ApiKey::DeleteTopics => &DELETE_TOPICS,
        ApiKey::InitProducerId => &INIT_PRODUCER_ID,
        ApiKey::OffsetForLeaderEpoch => &OFFSET_FOR_LEADER_EPOCH,
        ApiKey::DescribeConfigs => &DESCRIBE_CONFIGS,
        ApiKey::CreatePartitions => &CREATE_PARTITIONS,
        ApiKey::IncrementalAlterConfigs => &INCREMENTAL_ALTER_CONFIGS,
        ApiKey::DescribeCluster => &DESCRIBE_CLUSTER,
        ApiKey::FindCoordinator => &group::FIND_COORDINATOR,
        ApiKey::JoinGroup => &group::JOIN_GROUP,
        ApiKey::SyncGroup => &group::SYNC_GROUP,
        ApiKey::Heartbeat => &group::HEARTBEAT,
        ApiKey::LeaveGroup => &group::LEAVE_GROUP,
        ApiKey::OffsetCommit => &group::OFFSET_COMMIT,
        ApiKey::OffsetFetch => &group::OFFSET_FETCH,
        ApiKey::ListGroups => &group::LIST_GROUPS,
        ApiKey::DescribeGroups => &group::DESCRIBE_GROUPS,
        ApiKey::DeleteGroups => &group::DELETE_GROUPS,
        ApiKey::OffsetDelete => &group::OFFSET_DELETE,
        ApiKey::ConsumerGroupHeartbeat => &group::CONSUMER_GROUP_HEARTBEAT,
        ApiKey::ConsumerGroupDescribe => &group::CONSUMER_GROUP_DESCRIBE,
        _ => return None,
    })
}

static PRODUCE: Schema = Schema {
    flexible_from: 9,
    fields: &[
        from(3, Text), // transactional id
        always(I16),   // acks
        always(I32),   // timeout
        always(Structs(&[
            between(0, 12, Text),
            from(13, UUID),
            always(Structs(&[always(I32), always(Blob)])),
        ])),
    ],
};

static FETCH: Schema = Schema {
    flexible_from: 12,
    fields: &[
        between(0, 14, I32), // replica id
        always(I32),         // max wait
        always(I32),         // min bytes
        from(3, I32),        // max bytes
        from(4, I8),         // isolation level
        from(7, I32),        // session id
        from(7, I32),        // session epoch
        always(Structs(&[
            between(0, 12, Text),
            from(13, UUID),
            always(Structs(&[
                always(I32),   // partition
                from(9, I32),  // current leader epoch
                always(I64),   // fetch offset
                from(12, I32), // last fetched epoch
                from(5, I64),  // log start offset
                always(I32),   // max bytes
            ])),
        ])),
        from(
            7,
            Structs(&[between(7, 12, Text), from(13, UUID), always(I32_ARRAY)]),
        ),
        from(11, Text),      // rack
        tagged(12, 0, Text), // cluster id
    ],
};

static LIST_OFFSETS: Schema = Schema {
    flexible_from: 6,
    fields: &[
        always(I32),
        from(2, I8),
        always(Structs(&[
            always(Text),
            always(Structs(&[always(I32), from(4, I32), always(I64)])),
        ])),
        from(10, I32),
    ],
};

static METADATA: Schema = Schema {
    flexible_from: 9,
    fields: &[
        always(Structs(&[from(10, UUID), always(Text)])),
        from(4, BOOL),
        between(8, 10, BOOL),
        from(8, BOOL),
    ],
};

static API_VERSIONS: Schema = Schema {
    flexible_from: 3,
    fields: &[from(3, Text), from(3, Text)],
};

static CREATE_TOPICS: Schema = Schema {
    flexible_from: 5,
    fields: &[
        always(Structs(&[
            always(Text),
            always(I32),
            always(I16),
            always(Structs(&[always(I32), always(I32_ARRAY)])),
            always(Structs(&[always(Text), always(Text)])),
        ])),
        always(I32),
        from(1, BOOL),
    ],
};

static DELETE_TOPICS: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(6, Structs(&[always(Text), always(UUID)])),
        between(0, 5, TextArray),
        always(I32),
    ],
};

static INIT_PRODUCER_ID: Schema = Schema {
    flexible_from: 2,
    fields: &[
        always(Text),
        always(I32),
        from(3, I64),
        from(3, I16),
        from(6, BOOL),
        from(6, BOOL),
    ],
};

static OFFSET_FOR_LEADER_EPOCH: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(3, I32),
        always(Structs(&[
            always(Text),
            always(Structs(&[always(I32), from(2, I32), always(I32)])),
        ])),
    ],
};

static DESCRIBE_CONFIGS: Schema = Schema {
    flexible_from: 4,
    fields: &[
        always(Structs(&[always(I8), always(Text), always(TextArray)])),
        from(1, BOOL),
        from(3, BOOL),
    ],
};

static CREATE_PARTITIONS: Schema = Schema {
    flexible_from: 2,
    fields: &[
        always(Structs(&[
            always(Text),
            always(I32),
            always(Structs(&[always(I32_ARRAY)])),
        ])),
        always(I32),
        always(BOOL),
    ],
};

static INCREMENTAL_ALTER_CONFIGS: Schema = Schema {
    flexible_from: 1,
    fields: &[
        always(Structs(&[
            always(I8),
            always(Text),
            always(Structs(&[always(Text), always(I8), always(Text)])),
        ])),
        always(BOOL),
    ],
};

static DESCRIBE_CLUSTER: Schema = Schema {
    flexible_from: 0,
    fields: &[always(BOOL), from(1, I8), from(2, BOOL)],
};
