//! InitProducerId: identities for idempotent producers (KIP-98, KIP-360).

use std::ops::Range;

use corduroy_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use corduroy_protocol::{ErrorCode, RequestHeader};
use tracing::warn;

use super::context::KafkaContext;

/// The last epoch that is handed out; at it a producer gets a new id.
const EPOCH_MAX: i16 = i16::MAX - 1;

/// Hands an identity out, or bumps the epoch of one.
pub async fn init_producer_id(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    match identity(ctx, &request).await {
        Ok((id, epoch)) => InitProducerIdResponse::default()
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(epoch),
        Err(error) => {
            ctx.shard.counters().failed(header.api_key, error.name());
            InitProducerIdResponse::default()
                .with_error_code(error.code())
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1)
        }
    }
}

async fn identity(
    ctx: &KafkaContext,
    request: &InitProducerIdRequest,
) -> Result<(i64, i16), ErrorCode> {
    if let Some(id) = &request.transactional_id {
        // This API carries no message; the log says it to the operator.
        warn!(transactional_id = %id.0, "transactions are not served yet");
        return Err(ErrorCode::TransactionalIdAuthorizationFailed);
    }
    let (id, epoch) = (request.producer_id.0, request.producer_epoch);
    let allotted = 0..ctx.metadata.image().producer_ids_end;
    match judge(id, epoch, &allotted)? {
        Some(epoch) => Ok((id, epoch)),
        None => Ok((ctx.shard.producer_ids().take(&ctx.controller).await?, 0)),
    }
}

/// The next epoch of an identity that a producer names, or `None` for a new identity: nothing is
/// named, its epochs are used up, or nobody can have been given it. Taking such an id at its word
/// would let it be given to somebody else later. (Kafka gives every idempotent producer a new id,
/// whatever it names.)
fn judge(id: i64, epoch: i16, allotted: &Range<i64>) -> Result<Option<i16>, ErrorCode> {
    match (id, epoch) {
        (-1, -1) => Ok(None),
        (..0, _) | (_, ..0) => Err(ErrorCode::InvalidRequest),
        (id, ..EPOCH_MAX) if allotted.contains(&id) => Ok(Some(epoch + 1)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_nobody_was_given_is_not_taken_on_trust() {
        let cases = [
            ((-1, -1), Ok(None)),
            ((-1, 0), Err(ErrorCode::InvalidRequest)),
            ((5, -1), Err(ErrorCode::InvalidRequest)),
            ((-2, -1), Err(ErrorCode::InvalidRequest)),
            ((0, 0), Ok(Some(1))),
            ((999, 7), Ok(Some(8))),
            ((1_000, 7), Ok(None)),
            ((i64::MAX, 0), Ok(None)),
            ((5, EPOCH_MAX - 1), Ok(Some(EPOCH_MAX))),
            ((5, EPOCH_MAX), Ok(None)),
            ((5, i16::MAX), Ok(None)),
        ];
        for ((id, epoch), want) in cases {
            assert_eq!(judge(id, epoch, &(0..1_000)), want, "({id}, {epoch})");
        }
    }
}
