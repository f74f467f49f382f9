//! Kafka's error codes: the number on the wire, the name that people search for, what a client may
//! do about it.
//!
//! Numbers, names and retriability are the protocol's (`Errors` of the Java client 4.3); the
//! messages are ours.

use std::fmt;

/// What a client may do after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// Repeating the request changes nothing.
    Final,
    /// It may pass: try again later.
    Retry,
    /// It may pass, and the client's metadata is out of date: refresh it, then try again.
    Refresh,
}

use Remedy::{Final, Refresh, Retry};

macro_rules! error_codes {
    ($(($variant:ident, $code:literal, $name:literal, $remedy:ident, $message:literal),)*) => {
        /// An error code of the Kafka protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "` (", stringify!($code), "): ", $message, ".")]
                $variant,
            )*
            /// A code that this version of Corduroy does not know.
            Unknown(i16),
        }

        impl ErrorCode {
            /// Every known code, in ascending order, `None` included.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant),*];

            /// The number on the wire; 0 is no error.
            pub const fn code(self) -> i16 {
                match self {
                    $(ErrorCode::$variant => $code,)*
                    ErrorCode::Unknown(code) => code,
                }
            }

            /// The error of a number on the wire.
            pub const fn from_code(code: i16) -> ErrorCode {
                match code {
                    $($code => ErrorCode::$variant,)*
                    _ => ErrorCode::Unknown(code),
                }
            }

            /// Kafka's name, such as `NOT_LEADER_OR_FOLLOWER`; `UNKNOWN` for unknown codes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $name,)*
                    ErrorCode::Unknown(_) => "UNKNOWN",
                }
            }

            /// What happened, for people: a clause without capital and full stop.
            pub const fn message(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $message,)*
                    ErrorCode::Unknown(_) => "an error that this client does not know",
                }
            }

            const fn remedy(self) -> Remedy {
                match self {
                    $(ErrorCode::$variant => $remedy,)*
                    ErrorCode::Unknown(_) => Final,
                }
            }
        }
    };
}

error_codes! {
    (UnknownServerError, -1, "UNKNOWN_SERVER_ERROR", Final, "the server failed in a way that it has no code for"),
    (None, 0, "NONE", Final, "no error"),
    (OffsetOutOfRange, 1, "OFFSET_OUT_OF_RANGE", Final, "the offset lies outside the partition's log"),
    (CorruptMessage, 2, "CORRUPT_MESSAGE", Retry, "the batch is damaged: its checksum or its length is wrong"),
    (UnknownTopicOrPartition, 3, "UNKNOWN_TOPIC_OR_PARTITION", Refresh, "there is no such topic or partition"),
    (InvalidFetchSize, 4, "INVALID_FETCH_SIZE", Final, "the fetch size is invalid"),
    (LeaderNotAvailable, 5, "LEADER_NOT_AVAILABLE", Refresh, "the partition has no leader at the moment"),
    (NotLeaderOrFollower, 6, "NOT_LEADER_OR_FOLLOWER", Refresh, "this node does not lead the partition"),
    (RequestTimedOut, 7, "REQUEST_TIMED_OUT", Retry, "the request did not finish in its time"),
    (BrokerNotAvailable, 8, "BROKER_NOT_AVAILABLE", Final, "the node is not available"),
    (ReplicaNotAvailable, 9, "REPLICA_NOT_AVAILABLE", Refresh, "the replica is not available here"),
    (MessageTooLarge, 10, "MESSAGE_TOO_LARGE", Final, "the batch is larger than max.message.bytes"),
    (StaleControllerEpoch, 11, "STALE_CONTROLLER_EPOCH", Final, "the controller has moved on"),
    (OffsetMetadataTooLarge, 12, "OFFSET_METADATA_TOO_LARGE", Final, "the metadata beside the committed offset is too long"),
    (NetworkException, 13, "NETWORK_EXCEPTION", Refresh, "the connection broke before the answer"),
    (CoordinatorLoadInProgress, 14, "COORDINATOR_LOAD_IN_PROGRESS", Retry, "the coordinator is still loading"),
    (CoordinatorNotAvailable, 15, "COORDINATOR_NOT_AVAILABLE", Retry, "there is no coordinator at the moment"),
    (NotCoordinator, 16, "NOT_COORDINATOR", Retry, "this node is not the coordinator"),
    (InvalidTopicException, 17, "INVALID_TOPIC_EXCEPTION", Final, "the topic name is invalid"),
    (RecordListTooLarge, 18, "RECORD_LIST_TOO_LARGE", Final, "the batch is larger than a segment"),
    (NotEnoughReplicas, 19, "NOT_ENOUGH_REPLICAS", Retry, "fewer replicas are in sync than min.insync.replicas; nothing was appended"),
    (NotEnoughReplicasAfterAppend, 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Retry, "appended, but fewer replicas hold it than min.insync.replicas"),
    (InvalidRequiredAcks, 21, "INVALID_REQUIRED_ACKS", Final, "acks must be 0, 1 or -1 (all)"),
    (IllegalGeneration, 22, "ILLEGAL_GENERATION", Final, "the generation is not the group's current one"),
    (InconsistentGroupProtocol, 23, "INCONSISTENT_GROUP_PROTOCOL", Final, "the members share no protocol"),
    (InvalidGroupId, 24, "INVALID_GROUP_ID", Final, "the group id is invalid"),
    (UnknownMemberId, 25, "UNKNOWN_MEMBER_ID", Final, "the group does not know this member"),
    (InvalidSessionTimeout, 26, "INVALID_SESSION_TIMEOUT", Final, "the session timeout is outside the allowed range"),
    (RebalanceInProgress, 27, "REBALANCE_IN_PROGRESS", Final, "the group is rebalancing: rejoin"),
    (InvalidCommitOffsetSize, 28, "INVALID_COMMIT_OFFSET_SIZE", Final, "the offset commit is too large"),
    (TopicAuthorizationFailed, 29, "TOPIC_AUTHORIZATION_FAILED", Final, "not authorized for this topic"),
    (GroupAuthorizationFailed, 30, "GROUP_AUTHORIZATION_FAILED", Final, "not authorized for this group"),
    (ClusterAuthorizationFailed, 31, "CLUSTER_AUTHORIZATION_FAILED", Final, "not authorized for this cluster"),
    (InvalidTimestamp, 32, "INVALID_TIMESTAMP", Final, "a record's timestamp is outside the allowed range"),
    (UnsupportedSaslMechanism, 33, "UNSUPPORTED_SASL_MECHANISM", Final, "the server does not support this SASL mechanism"),
    (IllegalSaslState, 34, "ILLEGAL_SASL_STATE", Final, "this request is not valid in the present SASL state"),
    (UnsupportedVersion, 35, "UNSUPPORTED_VERSION", Final, "the version of this request is not supported"),
    (TopicAlreadyExists, 36, "TOPIC_ALREADY_EXISTS", Final, "a topic with this name exists"),
    (InvalidPartitions, 37, "INVALID_PARTITIONS", Final, "the number of partitions is invalid"),
    (InvalidReplicationFactor, 38, "INVALID_REPLICATION_FACTOR", Final, "the replication factor is below 1 or above the number of nodes"),
    (InvalidReplicaAssignment, 39, "INVALID_REPLICA_ASSIGNMENT", Final, "the replica assignment is invalid"),
    (InvalidConfig, 40, "INVALID_CONFIG", Final, "the configuration is invalid"),
    (NotController, 41, "NOT_CONTROLLER", Retry, "this node is not the controller"),
    (InvalidRequest, 42, "INVALID_REQUEST", Final, "the request contradicts itself"),
    (UnsupportedForMessageFormat, 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", Final, "the message format is not supported"),
    (PolicyViolation, 44, "POLICY_VIOLATION", Final, "the request violates the cluster's policy"),
    (OutOfOrderSequenceNumber, 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", Final, "the producer's sequence numbers have a gap"),
    (DuplicateSequenceNumber, 46, "DUPLICATE_SEQUENCE_NUMBER", Final, "the sequence number was used before"),
    (InvalidProducerEpoch, 47, "INVALID_PRODUCER_EPOCH", Final, "a producer with the same id and a newer epoch took over"),
    (InvalidTxnState, 48, "INVALID_TXN_STATE", Final, "the operation does not fit the state of the transaction"),
    (InvalidProducerIdMapping, 49, "INVALID_PRODUCER_ID_MAPPING", Final, "the producer id does not belong to this transactional id"),
    (InvalidTransactionTimeout, 50, "INVALID_TRANSACTION_TIMEOUT", Final, "the transaction timeout is above the server's maximum"),
    (ConcurrentTransactions, 51, "CONCURRENT_TRANSACTIONS", Retry, "another operation of this transaction is still under way"),
    (TransactionCoordinatorFenced, 52, "TRANSACTION_COORDINATOR_FENCED", Final, "the transaction coordinator was replaced"),
    (TransactionalIdAuthorizationFailed, 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Final, "not authorized for this transactional id"),
    (SecurityDisabled, 54, "SECURITY_DISABLED", Final, "security features are off"),
    (OperationNotAttempted, 55, "OPERATION_NOT_ATTEMPTED", Final, "not attempted, because an earlier part of the request failed"),
    (KafkaStorageError, 56, "KAFKA_STORAGE_ERROR", Refresh, "the node's disk failed"),
    (LogDirNotFound, 57, "LOG_DIR_NOT_FOUND", Final, "there is no such log directory"),
    (SaslAuthenticationFailed, 58, "SASL_AUTHENTICATION_FAILED", Final, "authentication failed"),
    (UnknownProducerId, 59, "UNKNOWN_PRODUCER_ID", Final, "the partition does not know this producer id"),
    (ReassignmentInProgress, 60, "REASSIGNMENT_IN_PROGRESS", Final, "a reassignment of this partition is under way"),
    (DelegationTokenAuthDisabled, 61, "DELEGATION_TOKEN_AUTH_DISABLED", Final, "delegation tokens are off"),
    (DelegationTokenNotFound, 62, "DELEGATION_TOKEN_NOT_FOUND", Final, "there is no such delegation token"),
    (DelegationTokenOwnerMismatch, 63, "DELEGATION_TOKEN_OWNER_MISMATCH", Final, "the delegation token belongs to someone else"),
    (DelegationTokenRequestNotAllowed, 64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", Final, "delegation tokens cannot be requested on this connection"),
    (DelegationTokenAuthorizationFailed, 65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", Final, "not authorized for this delegation token"),
    (DelegationTokenExpired, 66, "DELEGATION_TOKEN_EXPIRED", Final, "the delegation token has expired"),
    (InvalidPrincipalType, 67, "INVALID_PRINCIPAL_TYPE", Final, "the principal's type is not supported"),
    (NonEmptyGroup, 68, "NON_EMPTY_GROUP", Final, "the group still has members"),
    (GroupIdNotFound, 69, "GROUP_ID_NOT_FOUND", Final, "there is no such group"),
    (FetchSessionIdNotFound, 70, "FETCH_SESSION_ID_NOT_FOUND", Retry, "there is no such fetch session"),
    (InvalidFetchSessionEpoch, 71, "INVALID_FETCH_SESSION_EPOCH", Retry, "the fetch session's epoch is wrong"),
    (ListenerNotFound, 72, "LISTENER_NOT_FOUND", Refresh, "the leader has no listener of the name that the client used"),
    (TopicDeletionDisabled, 73, "TOPIC_DELETION_DISABLED", Final, "deleting topics is off"),
    (FencedLeaderEpoch, 74, "FENCED_LEADER_EPOCH", Refresh, "the client's leader epoch is older than the leader's"),
    (UnknownLeaderEpoch, 75, "UNKNOWN_LEADER_EPOCH", Retry, "the client's leader epoch is newer than this node's"),
    (UnsupportedCompressionType, 76, "UNSUPPORTED_COMPRESSION_TYPE", Final, "the codec is not supported in this version of the request"),
    (StaleBrokerEpoch, 77, "STALE_BROKER_EPOCH", Final, "the node has restarted since"),
    (OffsetNotAvailable, 78, "OFFSET_NOT_AVAILABLE", Retry, "a new leader does not know its high watermark yet"),
    (MemberIdRequired, 79, "MEMBER_ID_REQUIRED", Final, "join again with the member id of this answer"),
    (PreferredLeaderNotAvailable, 80, "PREFERRED_LEADER_NOT_AVAILABLE", Refresh, "the preferred leader is not available"),
    (GroupMaxSizeReached, 81, "GROUP_MAX_SIZE_REACHED", Final, "the group has as many members as it may have"),
    (FencedInstanceId, 82, "FENCED_INSTANCE_ID", Final, "another member took over this group.instance.id"),
    (EligibleLeadersNotAvailable, 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", Refresh, "no replica can be elected"),
    (ElectionNotNeeded, 84, "ELECTION_NOT_NEEDED", Refresh, "the partition has the right leader already"),
    (NoReassignmentInProgress, 85, "NO_REASSIGNMENT_IN_PROGRESS", Final, "no reassignment is under way"),
    (GroupSubscribedToTopic, 86, "GROUP_SUBSCRIBED_TO_TOPIC", Final, "the group is subscribed to this topic"),
    (InvalidRecord, 87, "INVALID_RECORD", Final, "a record or its batch breaks a rule"),
    (UnstableOffsetCommit, 88, "UNSTABLE_OFFSET_COMMIT", Retry, "an open transaction still holds offsets of this partition"),
    (ThrottlingQuotaExceeded, 89, "THROTTLING_QUOTA_EXCEEDED", Retry, "the quota is used up"),
    (ProducerFenced, 90, "PRODUCER_FENCED", Final, "a producer with the same transactional id took over"),
    (ResourceNotFound, 91, "RESOURCE_NOT_FOUND", Final, "there is no such resource"),
    (DuplicateResource, 92, "DUPLICATE_RESOURCE", Final, "the resource exists"),
    (UnacceptableCredential, 93, "UNACCEPTABLE_CREDENTIAL", Final, "the credential does not meet the rules"),
    (InconsistentVoterSet, 94, "INCONSISTENT_VOTER_SET", Final, "the voters do not agree on who votes"),
    (InvalidUpdateVersion, 95, "INVALID_UPDATE_VERSION", Final, "the update's version is invalid"),
    (FeatureUpdateFailed, 96, "FEATURE_UPDATE_FAILED", Final, "the features could not be updated"),
    (PrincipalDeserializationFailure, 97, "PRINCIPAL_DESERIALIZATION_FAILURE", Final, "the forwarded principal cannot be read"),
    (SnapshotNotFound, 98, "SNAPSHOT_NOT_FOUND", Final, "there is no such snapshot"),
    (PositionOutOfRange, 99, "POSITION_OUT_OF_RANGE", Final, "the position lies outside the snapshot"),
    (UnknownTopicId, 100, "UNKNOWN_TOPIC_ID", Refresh, "there is no topic with this id"),
    (DuplicateBrokerRegistration, 101, "DUPLICATE_BROKER_REGISTRATION", Final, "the node id is in use"),
    (BrokerIdNotRegistered, 102, "BROKER_ID_NOT_REGISTERED", Final, "the node id is not registered"),
    (InconsistentTopicId, 103, "INCONSISTENT_TOPIC_ID", Refresh, "the topic's id in the request is not the one in the log"),
    (InconsistentClusterId, 104, "INCONSISTENT_CLUSTER_ID", Final, "the request belongs to another cluster"),
    (TransactionalIdNotFound, 105, "TRANSACTIONAL_ID_NOT_FOUND", Final, "there is no such transactional id"),
    (FetchSessionTopicIdError, 106, "FETCH_SESSION_TOPIC_ID_ERROR", Retry, "the fetch session mixes topic ids and topic names"),
    (IneligibleReplica, 107, "INELIGIBLE_REPLICA", Final, "the replica must not join the in-sync replicas"),
    (NewLeaderElected, 108, "NEW_LEADER_ELECTED", Final, "the partition's leader changed meanwhile"),
    (OffsetMovedToTieredStorage, 109, "OFFSET_MOVED_TO_TIERED_STORAGE", Final, "the offset lies in tiered storage"),
    (FencedMemberEpoch, 110, "FENCED_MEMBER_EPOCH", Final, "the group's coordinator fenced this member epoch"),
    (UnreleasedInstanceId, 111, "UNRELEASED_INSTANCE_ID", Final, "another member still holds this group.instance.id"),
    (UnsupportedAssignor, 112, "UNSUPPORTED_ASSIGNOR", Final, "the group does not know this assignor"),
    (StaleMemberEpoch, 113, "STALE_MEMBER_EPOCH", Final, "the member epoch is old: heartbeat, then retry"),
    (MismatchedEndpointType, 114, "MISMATCHED_ENDPOINT_TYPE", Final, "the request went to the wrong kind of endpoint"),
    (UnsupportedEndpointType, 115, "UNSUPPORTED_ENDPOINT_TYPE", Final, "the endpoint type is not supported"),
    (UnknownControllerId, 116, "UNKNOWN_CONTROLLER_ID", Final, "there is no such controller"),
    (UnknownSubscriptionId, 117, "UNKNOWN_SUBSCRIPTION_ID", Final, "the client's telemetry subscription is out of date"),
    (TelemetryTooLarge, 118, "TELEMETRY_TOO_LARGE", Final, "the telemetry is too large"),
    (InvalidRegistration, 119, "INVALID_REGISTRATION", Final, "the registration is invalid"),
    (TransactionAbortable, 120, "TRANSACTION_ABORTABLE", Final, "the transaction failed and can only be aborted"),
    (InvalidRecordState, 121, "INVALID_RECORD_STATE", Final, "the record's delivery state does not allow this"),
    (ShareSessionNotFound, 122, "SHARE_SESSION_NOT_FOUND", Retry, "there is no such share session"),
    (InvalidShareSessionEpoch, 123, "INVALID_SHARE_SESSION_EPOCH", Retry, "the share session's epoch is wrong"),
    (FencedStateEpoch, 124, "FENCED_STATE_EPOCH", Final, "the share coordinator fenced this state epoch"),
    (InvalidVoterKey, 125, "INVALID_VOTER_KEY", Final, "the voter's key is not the receiver's"),
    (DuplicateVoter, 126, "DUPLICATE_VOTER", Final, "the voter is in the set already"),
    (VoterNotFound, 127, "VOTER_NOT_FOUND", Final, "the voter is not in the set"),
    (InvalidRegularExpression, 128, "INVALID_REGULAR_EXPRESSION", Final, "the regular expression is invalid"),
    (RebootstrapRequired, 129, "REBOOTSTRAP_REQUIRED", Final, "the client must find the cluster again from its bootstrap servers"),
    (StreamsInvalidTopology, 130, "STREAMS_INVALID_TOPOLOGY", Final, "the topology is invalid"),
    (StreamsInvalidTopologyEpoch, 131, "STREAMS_INVALID_TOPOLOGY_EPOCH", Final, "the topology's epoch is invalid"),
    (StreamsTopologyFenced, 132, "STREAMS_TOPOLOGY_FENCED", Final, "a newer topology took over"),
    (ShareSessionLimitReached, 133, "SHARE_SESSION_LIMIT_REACHED", Retry, "there are as many share sessions as there may be"),
}

impl ErrorCode {
    /// Whether it is no error.
    pub const fn is_ok(self) -> bool {
        matches!(self, ErrorCode::None)
    }

    /// Whether the same request may succeed later.
    pub const fn is_retriable(self) -> bool {
        !matches!(self.remedy(), Final)
    }

    /// Whether the client should refresh its metadata before it tries again.
    pub const fn refreshes_metadata(self) -> bool {
        matches!(self.remedy(), Refresh)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorCode::Unknown(code) => write!(f, "UNKNOWN ({code})"),
            known => f.write_str(known.name()),
        }
    }
}

impl std::error::Error for ErrorCode {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_names_and_numbers_agree() {
        for code in -1..=133 {
            let error = ErrorCode::from_code(code);
            assert_eq!(error.code(), code);
            assert_eq!(ErrorCode::ALL[(code + 1) as usize], error);
            assert_ne!(error.name(), "UNKNOWN");
        }
        assert_eq!(ErrorCode::ALL.len(), 135);
        for code in [-2, 134, i16::MIN, i16::MAX] {
            assert_eq!(ErrorCode::from_code(code), ErrorCode::Unknown(code));
            assert_eq!(ErrorCode::from_code(code).code(), code);
        }
    }

    /// The retriable errors of the Java client 4.3, by number.
    #[test]
    fn retriable_errors_are_javas() {
        let refresh = [3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103];
        let retry = [
            2, 7, 14, 15, 16, 19, 20, 41, 51, 70, 71, 75, 78, 88, 89, 106, 122, 123, 133,
        ];
        for error in ErrorCode::ALL {
            let code = error.code();
            assert_eq!(
                error.refreshes_metadata(),
                refresh.contains(&code),
                "{error}"
            );
            let retriable = refresh.contains(&code) || retry.contains(&code);
            assert_eq!(error.is_retriable(), retriable, "{error}");
        }
    }

    #[test]
    fn shown_as_kafka_names_them() {
        assert_eq!(
            ErrorCode::NotLeaderOrFollower.to_string(),
            "NOT_LEADER_OR_FOLLOWER"
        );
        assert_eq!(ErrorCode::Unknown(999).to_string(), "UNKNOWN (999)");
        assert!(ErrorCode::from_code(0).is_ok());
    }
}
