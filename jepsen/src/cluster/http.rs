//! The little HTTP that the nodes' admin ports need.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Asks `method path` and returns the status code and the JSON body.
///
/// # Errors
/// No connection, no answer within `limit`, no HTTP, no JSON.
pub async fn ask(
    env: &Env,
    address: SocketAddr,
    method: &str,
    path: &str,
    limit: Duration,
) -> anyhow::Result<(u16, Value)> {
    timeout(limit, exchange(env, address, method, path))
        .await
        .with_context(|| format!("{address} did not answer within {limit:?}"))?
}

async fn exchange(
    env: &Env,
    address: SocketAddr,
    method: &str,
    path: &str,
) -> anyhow::Result<(u16, Value)> {
    let mut stream = env.connect(address).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .await?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
    let code: u16 = head
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok())
        .context("no HTTP status")?;
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        bail!("{address} answered in chunks");
    }
    Ok((code, serde_json::from_str(body).unwrap_or(Value::Null)))
}
