//! Response bodies. The order of the fields is the wire's.

use kafka_protocol::messages::ApiKey;

use super::Kind::{Blob, Struct, Structs, Text};
use super::group_response as group;
use super::{BOOL, I8, I16, I32, I32_ARRAY, I64, Schema, UUID, always, between, from, tagged};

/// The response body of an API, `None` if we have no row for it.
pub(crate) fn response_schema(key: ApiKey) -> Option<&'static Schema> {
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
        always(Structs(&[
            between(0, 12, Text),
            from(13, UUID),
            always(Structs(&[
                always(I32),                                    // partition
                always(I16),                                    // error
                always(I64),                                    // base offset
                from(2, I64),                                   // log append time
                from(5, I64),                                   // log start offset
                from(8, Structs(&[always(I32), always(Text)])), // record errors
                from(8, Text),                                  // error message
                tagged(10, 0, Struct(&[always(I32), always(I32)])),
            ])),
        ])),
        from(1, I32), // throttle
        tagged(
            10,
            0,
            Structs(&[always(I32), always(Text), always(I32), always(Text)]),
        ),
    ],
};

static FETCH: Schema = Schema {
    flexible_from: 12,
    fields: &[
        from(1, I32), // throttle
        from(7, I16), // error
        from(7, I32), // session id
        always(Structs(&[
            between(0, 12, Text),
            from(13, UUID),
            always(Structs(&[
                always(I32),                                   // partition
                always(I16),                                   // error
                always(I64),                                   // high watermark
                from(4, I64),                                  // last stable offset
                from(5, I64),                                  // log start offset
                from(4, Structs(&[always(I64), always(I64)])), // aborted transactions
                from(11, I32),                                 // preferred read replica
                always(Blob),                                  // records
                tagged(12, 0, Struct(&[always(I32), always(I64)])),
                tagged(12, 1, Struct(&[always(I32), always(I32)])),
                tagged(12, 2, Struct(&[always(I64), always(I32)])),
            ])),
        ])),
        tagged(
            16,
            0,
            Structs(&[always(I32), always(Text), always(I32), always(Text)]),
        ),
    ],
};

static LIST_OFFSETS: Schema = Schema {
    flexible_from: 6,
    fields: &[
        from(2, I32),
        always(Structs(&[
            always(Text),
            always(Structs(&[
                always(I32),
                always(I16),
                from(1, I64),
                from(1, I64),
                from(4, I32),
            ])),
        ])),
    ],
};

static METADATA: Schema = Schema {
    flexible_from: 9,
    fields: &[
        from(3, I32), // throttle
        always(Structs(&[
            always(I32),
            always(Text),
            always(I32),
            from(1, Text),
        ])),
        from(2, Text), // cluster id
        from(1, I32),  // controller
        always(Structs(&[
            always(I16),
            always(Text),
            from(10, UUID),
            from(1, BOOL),
            always(Structs(&[
                always(I16),
                always(I32),
                always(I32),
                from(7, I32),
                always(I32_ARRAY),
                always(I32_ARRAY),
                from(5, I32_ARRAY),
            ])),
            from(8, I32),
        ])),
        between(8, 10, I32), // authorized operations
        from(13, I16),       // error
    ],
};

static API_VERSIONS: Schema = Schema {
    flexible_from: 3,
    fields: &[
        always(I16),
        always(Structs(&[always(I16), always(I16), always(I16)])),
        from(1, I32),
        tagged(3, 0, Structs(&[always(Text), always(I16), always(I16)])),
        tagged(3, 1, I64),
        tagged(3, 2, Structs(&[always(Text), always(I16), always(I16)])),
        tagged(3, 3, BOOL),
    ],
};

static CREATE_TOPICS: Schema = Schema {
    flexible_from: 5,
    fields: &[
        from(2, I32),
        always(Structs(&[
            always(Text),
            from(7, UUID),
            always(I16),
            from(1, Text),
            from(5, I32),
            from(5, I16),
            from(
                5,
                Structs(&[
                    always(Text),
                    always(Text),
                    always(BOOL),
                    always(I8),
                    always(BOOL),
                ]),
            ),
            tagged(5, 0, I16),
        ])),
    ],
};

static DELETE_TOPICS: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(1, I32),
        always(Structs(&[
            always(Text),
            from(6, UUID),
            always(I16),
            from(5, Text),
        ])),
    ],
};

static INIT_PRODUCER_ID: Schema = Schema {
    flexible_from: 2,
    fields: &[
        always(I32),
        always(I16),
        always(I64),
        always(I16),
        from(6, I64),
        from(6, I16),
    ],
};

static OFFSET_FOR_LEADER_EPOCH: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(2, I32),
        always(Structs(&[
            always(Text),
            always(Structs(&[
                always(I16),
                always(I32),
                from(1, I32),
                always(I64),
            ])),
        ])),
    ],
};

static DESCRIBE_CONFIGS: Schema = Schema {
    flexible_from: 4,
    fields: &[
        always(I32),
        always(Structs(&[
            always(I16),
            always(Text),
            always(I8),
            always(Text),
            always(Structs(&[
                always(Text),
                always(Text),
                always(BOOL),
                between(0, 0, BOOL),
                from(1, I8),
                always(BOOL),
                from(1, Structs(&[always(Text), always(Text), always(I8)])),
                from(3, I8),
                from(3, Text),
            ])),
        ])),
    ],
};

static CREATE_PARTITIONS: Schema = Schema {
    flexible_from: 2,
    fields: &[
        always(I32),
        always(Structs(&[always(Text), always(I16), always(Text)])),
    ],
};

static INCREMENTAL_ALTER_CONFIGS: Schema = Schema {
    flexible_from: 1,
    fields: &[
        always(I32),
        always(Structs(&[
            always(I16),
            always(Text),
            always(I8),
            always(Text),
        ])),
    ],
};

static DESCRIBE_CLUSTER: Schema = Schema {
    flexible_from: 0,
    fields: &[
        always(I32),
        always(I16),
        always(Text),
        from(1, I8),
        always(Text),
        always(I32),
        always(Structs(&[
            always(I32),
            always(Text),
            always(I32),
            always(Text),
            from(2, BOOL),
        ])),
        always(I32),
    ],
};
