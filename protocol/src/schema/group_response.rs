//! Response bodies of consumer groups. The order of the fields is the wire's.

use super::Kind::{Blob, NullableStruct, Struct, Structs, Text, TextArray};
use super::{BOOL, Field, I8, I16, I32, I32_ARRAY, I64, Schema, UUID, always, between, from};

pub(super) static FIND_COORDINATOR: Schema = Schema {
    flexible_from: 3,
    fields: &[
        from(1, I32),        // throttle
        between(0, 3, I16),  // error
        between(1, 3, Text), // error message
        between(0, 3, I32),  // node
        between(0, 3, Text), // host
        between(0, 3, I32),  // port
        from(
            4,
            Structs(&[
                always(Text), // key
                always(I32),  // node
                always(Text), // host
                always(I32),  // port
                always(I16),  // error
                always(Text), // error message
            ]),
        ),
    ],
};

pub(super) static JOIN_GROUP: Schema = Schema {
    flexible_from: 6,
    fields: &[
        from(2, I32),  // throttle
        always(I16),   // error
        always(I32),   // generation
        from(7, Text), // protocol type
        always(Text),  // protocol
        always(Text),  // leader
        from(9, BOOL), // skip assignment
        always(Text),  // member
        always(Structs(&[always(Text), from(5, Text), always(Blob)])),
    ],
};

pub(super) static SYNC_GROUP: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(1, I32),  // throttle
        always(I16),   // error
        from(5, Text), // protocol type
        from(5, Text), // protocol
        always(Blob),  // assignment
    ],
};

pub(super) static HEARTBEAT: Schema = Schema {
    flexible_from: 4,
    fields: &[from(1, I32), always(I16)],
};

pub(super) static LEAVE_GROUP: Schema = Schema {
    flexible_from: 4,
    fields: &[
        from(1, I32),
        always(I16),
        from(3, Structs(&[always(Text), always(Text), always(I16)])),
    ],
};

pub(super) static OFFSET_COMMIT: Schema = Schema {
    flexible_from: 8,
    fields: &[
        from(3, I32),
        always(Structs(&[
            between(0, 9, Text),
            from(10, UUID),
            always(Structs(&[always(I32), always(I16)])),
        ])),
    ],
};

/// One partition of OffsetFetch; the leader epoch came with version 5.
const FETCHED_OFFSET: &[Field] = &[
    always(I32),
    always(I64),
    from(5, I32),
    always(Text),
    always(I16),
];

pub(super) static OFFSET_FETCH: Schema = Schema {
    flexible_from: 6,
    fields: &[
        from(3, I32), // throttle
        between(
            0,
            7,
            Structs(&[always(Text), always(Structs(FETCHED_OFFSET))]),
        ),
        between(2, 7, I16), // error
        from(
            8,
            Structs(&[
                always(Text), // group
                always(Structs(&[
                    between(0, 9, Text),
                    from(10, UUID),
                    always(Structs(FETCHED_OFFSET)),
                ])),
                always(I16), // error
            ]),
        ),
    ],
};

pub(super) static LIST_GROUPS: Schema = Schema {
    flexible_from: 3,
    fields: &[
        from(1, I32),
        always(I16),
        always(Structs(&[
            always(Text),  // group
            always(Text),  // protocol type
            from(4, Text), // state
            from(5, Text), // type
        ])),
    ],
};

pub(super) static DESCRIBE_GROUPS: Schema = Schema {
    flexible_from: 5,
    fields: &[
        from(1, I32),
        always(Structs(&[
            always(I16),   // error
            from(6, Text), // error message
            always(Text),  // group
            always(Text),  // state
            always(Text),  // protocol type
            always(Text),  // protocol
            always(Structs(&[
                always(Text),  // member
                from(4, Text), // instance
                always(Text),  // client id
                always(Text),  // client host
                always(Blob),  // metadata
                always(Blob),  // assignment
            ])),
            from(3, I32), // authorized operations
        ])),
    ],
};

pub(super) static DELETE_GROUPS: Schema = Schema {
    flexible_from: 2,
    fields: &[always(I32), always(Structs(&[always(Text), always(I16)]))],
};

pub(super) static OFFSET_DELETE: Schema = Schema {
    flexible_from: i16::MAX,
    fields: &[
        always(I16),
        always(I32),
        always(Structs(&[
            always(Text),
            always(Structs(&[always(I32), always(I16)])),
        ])),
    ],
};

pub(super) static CONSUMER_GROUP_HEARTBEAT: Schema = Schema {
    flexible_from: 0,
    fields: &[
        always(I32),  // throttle
        always(I16),  // error
        always(Text), // error message
        always(Text), // member
        always(I32),  // member epoch
        always(I32),  // heartbeat interval
        always(NullableStruct(&[always(Structs(&[
            always(UUID),
            always(I32_ARRAY),
        ]))])),
    ],
};

/// Partitions by topic id and name.
const DESCRIBED_ASSIGNMENT: &[Field] = &[always(Structs(&[
    always(UUID),
    always(Text),
    always(I32_ARRAY),
]))];

pub(super) static CONSUMER_GROUP_DESCRIBE: Schema = Schema {
    flexible_from: 0,
    fields: &[
        always(I32),
        always(Structs(&[
            always(I16),  // error
            always(Text), // error message
            always(Text), // group
            always(Text), // state
            always(I32),  // group epoch
            always(I32),  // assignment epoch
            always(Text), // assignor
            always(Structs(&[
                always(Text),      // member
                always(Text),      // instance
                always(Text),      // rack
                always(I32),       // member epoch
                always(Text),      // client id
                always(Text),      // client host
                always(TextArray), // topics
                always(Text),      // regular expression
                always(Struct(DESCRIBED_ASSIGNMENT)),
                always(Struct(DESCRIBED_ASSIGNMENT)),
                from(1, I8), // member type
            ])),
            always(I32), // authorized operations
        ])),
    ],
};
