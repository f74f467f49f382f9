//! Request bodies of consumer groups. The order of the fields is the wire's.

use super::Kind::{Blob, Structs, Text, TextArray};
use super::{BOOL, I8, I32, I32_ARRAY, I64, Schema, UUID, always, between, from};

pub(super) static FIND_COORDINATOR: Schema = Schema {
    flexible_from: 3,
    fields: &[between(0, 3, Text), from(1, I8), from(4, TextArray)],
};

pub(super) static JOIN_GROUP: Schema = Schema {
    flexible_from: 6,
    fields: &[
        always(Text),  // group
        always(I32),   // session timeout
        from(1, I32),  // rebalance timeout
        always(Text),  // member
        from(5, Text), // instance
        always(Text),  // protocol type
        always(Structs(&[always(Text), always(Blob)])),
        from(8, Text), // reason
    ],
};

pub(super) static SYNC_GROUP: Schema = Schema {
    flexible_from: 4,
    fields: &[
        always(Text),  // group
        always(I32),   // generation
        always(Text),  // member
        from(3, Text), // instance
        from(5, Text), // protocol type
        from(5, Text), // protocol
        always(Structs(&[always(Text), always(Blob)])),
    ],
};

pub(super) static HEARTBEAT: Schema = Schema {
    flexible_from: 4,
    fields: &[
        always(Text),  // group
        always(I32),   // generation
        always(Text),  // member
        from(3, Text), // instance
    ],
};

pub(super) static LEAVE_GROUP: Schema = Schema {
    flexible_from: 4,
    fields: &[
        always(Text),
        between(0, 2, Text),
        from(3, Structs(&[from(3, Text), from(3, Text), from(5, Text)])),
    ],
};

pub(super) static OFFSET_COMMIT: Schema = Schema {
    flexible_from: 8,
    fields: &[
        always(Text),       // group
        always(I32),        // generation or member epoch
        always(Text),       // member
        from(7, Text),      // instance
        between(0, 4, I64), // retention time
        always(Structs(&[
            between(0, 9, Text),
            from(10, UUID),
            always(Structs(&[
                always(I32),
                always(I64),
                from(6, I32), // leader epoch
                always(Text), // metadata
            ])),
        ])),
    ],
};

pub(super) static OFFSET_FETCH: Schema = Schema {
    flexible_from: 6,
    fields: &[
        between(0, 7, Text),
        between(0, 7, Structs(&[always(Text), always(I32_ARRAY)])),
        from(
            8,
            Structs(&[
                always(Text),
                from(9, Text), // member
                from(9, I32),  // member epoch
                always(Structs(&[
                    between(0, 9, Text),
                    from(10, UUID),
                    always(I32_ARRAY),
                ])),
            ]),
        ),
        from(7, BOOL), // require stable
    ],
};

pub(super) static LIST_GROUPS: Schema = Schema {
    flexible_from: 3,
    fields: &[from(4, TextArray), from(5, TextArray)],
};

pub(super) static DESCRIBE_GROUPS: Schema = Schema {
    flexible_from: 5,
    fields: &[always(TextArray), from(3, BOOL)],
};

pub(super) static DELETE_GROUPS: Schema = Schema {
    flexible_from: 2,
    fields: &[always(TextArray)],
};

pub(super) static OFFSET_DELETE: Schema = Schema {
    flexible_from: i16::MAX,
    fields: &[
        always(Text),
        always(Structs(&[always(Text), always(Structs(&[always(I32)]))])),
    ],
};

pub(super) static CONSUMER_GROUP_HEARTBEAT: Schema = Schema {
    flexible_from: 0,
    fields: &[
        always(Text),      // group
        always(Text),      // member
        always(I32),       // member epoch
        always(Text),      // instance
        always(Text),      // rack
        always(I32),       // rebalance timeout
        always(TextArray), // topics
        from(1, Text),     // regular expression
        always(Text),      // assignor
        always(Structs(&[always(UUID), always(I32_ARRAY)])),
    ],
};

pub(super) static CONSUMER_GROUP_DESCRIBE: Schema = Schema {
    flexible_from: 0,
    fields: &[always(TextArray), always(BOOL)],
};
