//! InitProducerId: identities for idempotent producers, from blocks that the controller has made
//! durable before any of them is handed out (KIP-98, KIP-360).

use std::cell::RefCell;
use std::ops::Range;

use corduroy_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use corduroy_protocol::{ErrorCode, RequestHeader};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::context::KafkaContext;

/// The last epoch that is handed out; at it a producer gets a new id.
const EPOCH_MAX: i16 = i16::MAX - 1;

/// A shard's block of producer ids.
pub struct ProducerIds {
    block: RefCell<Range<i64>>,
    /// One permit: the right to fetch the next block.
    refill: Semaphore,
}

impl Default for ProducerIds {
    fn default() -> Self {
        Self {
            block: RefCell::new(0..0),
            refill: Semaphore::new(1),
        }
    }
}

impl ProducerIds {
    fn next(&self) -> Option<i64> {
        self.block.borrow_mut().next()
    }

    async fn take(&self, ctx: &KafkaContext) -> Result<i64, ErrorCode> {
        if let Some(id) = self.next() {
            return Ok(id);
        }
        // One refill at a time; whoever waited finds the new block.
        let _one = self
            .refill
            .acquire()
            .await
            .map_err(|_| ErrorCode::CoordinatorNotAvailable)?;
        loop {
            if let Some(id) = self.next() {
                return Ok(id);
            }
            match ctx.controller.allocate_producer_ids().await {
                Ok(block) => *self.block.borrow_mut() = block,
                Err(error) => {
                    warn!(%error, "no block of producer ids could be had");
                    return Err(ErrorCode::CoordinatorNotAvailable);
                }
            }
        }
    }
}

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
        debug!(transactional_id = %id.0, "transactions are not served yet");
        return Err(ErrorCode::TransactionalIdAuthorizationFailed);
    }
    let (id, epoch) = (request.producer_id.0, request.producer_epoch);
    match (id, epoch) {
        (..0, _) => Ok((ctx.shard.producer_ids().take(ctx).await?, 0)),
        (_, ..0) => Err(ErrorCode::InvalidRequest),
        (_, EPOCH_MAX..) => Ok((ctx.shard.producer_ids().take(ctx).await?, 0)),
        (id, epoch) => Ok((id, epoch + 1)),
    }
}
