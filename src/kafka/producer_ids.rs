//! InitProducerId: identities for idempotent producers (KIP-98, KIP-360).

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
    match (id, epoch) {
        (..0, _) => Ok((ctx.shard.producer_ids().take(&ctx.controller).await?, 0)),
        (_, ..0) => Err(ErrorCode::InvalidRequest),
        (_, EPOCH_MAX..) => Ok((ctx.shard.producer_ids().take(&ctx.controller).await?, 0)),
        (id, epoch) => Ok((id, epoch + 1)),
    }
}
