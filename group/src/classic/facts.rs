//! What a group knows of its members, for a group that changes its protocol.

use bytes::Bytes;

use super::ClassicGroup;
use crate::records::ClassicMemberValue;

/// A member with all that it told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// As the group's record has it, or would have it.
    pub value: ClassicMemberValue,
    /// Name and metadata in its order of preference; after a failover the chosen one alone.
    pub protocols: Vec<(String, Bytes)>,
}

impl ClassicGroup {
    /// The members in the order in which they joined.
    pub fn facts(&self) -> Vec<MemberFacts> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let members = self.members.iter();
        members
            .map(|(_, member)| MemberFacts {
                value: member.value(protocol),
                protocols: member.protocols().to_vec(),
            })
            .collect()
    }
}
