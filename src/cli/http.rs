//! The smallest HTTP client that can ask an admin port: one request, one answer, one connection.

use std::net::SocketAddr;
use std::time::Duration;

use corduroy_env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The most bytes of an answer that are read.
pub const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long one request may take.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(35);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// Sends `method path` to an admin port.
///
/// # Errors
/// A sentence: unreachable, too slow, or no HTTP.
pub async fn ask(env: &Env, addr: SocketAddr, method: &str, path: &str) -> Result<Answer, String> {
    let exchange = async {
        let mut stream = env.connect(addr).await.map_err(|error| error.to_string())?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {addr}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        stream
            .write_all(request.as_bytes())
            .await
            .map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        let mut limited = stream.take(ANSWER_BYTES_MAX);
        limited
            .read_to_end(&mut bytes)
            .await
            .map_err(|error| error.to_string())?;
        parse(&bytes).ok_or_else(|| "the answer is no HTTP".to_owned())
    };
    match tokio::time::timeout(ANSWER_WAIT_MAX, exchange).await {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {} s", ANSWER_WAIT_MAX.as_secs())),
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let body = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines
        .next()?
        .strip_prefix("HTTP/1.1 ")?
        .get(..3)?
        .parse()
        .ok()?;
    let is_chunked = lines.any(|line| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("transfer-encoding")
                && value.trim().eq_ignore_ascii_case("chunked")
        })
    });
    let body = if is_chunked {
        join_chunks(body)?
    } else {
        body.to_vec()
    };
    Some(Answer {
        status,
        body: String::from_utf8(body).ok()?,
    })
}

fn join_chunks(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[..end])
            .ok()?
            .split(';')
            .next()?
            .trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let start = end + 2;
        let chunk_end = start.checked_add(size)?;
        body.extend_from_slice(bytes.get(start..chunk_end)?);
        bytes = bytes.get(chunk_end + 2..)?;
    }
}

/// A path segment with everything but unreserved characters escaped (RFC 3986, section 2.3).
pub fn escape_segment(text: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut escaped, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                escaped.push(char::from(byte));
            } else {
                escaped.push_str(&format!("%{byte:02X}"));
            }
            escaped
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_a_length_and_in_chunks() {
        let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
        assert_eq!(
            parse(plain),
            Some(Answer {
                status: 200,
                body: "hi".to_owned()
            })
        );
        let chunked =
            b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3;x\r\n yo\r\n0\r\n\r\n";
        assert_eq!(
            parse(chunked),
            Some(Answer {
                status: 503,
                body: "hi yo".to_owned()
            })
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhi",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhi",
        ] {
            assert_eq!(parse(bytes), None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn segments_are_escaped() {
        assert_eq!(escape_segment("a.b-c_d"), "a.b-c_d");
        assert_eq!(escape_segment("a/b c?"), "a%2Fb%20c%3F");
    }
}
