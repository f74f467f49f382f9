//! One record as one line of JSON.
//!
//! Keys, values and header values are text where they are UTF-8; otherwise the text is null and a
//! field of the same name with `_base64` holds the bytes.

use serde::Serialize;

use super::format::{RecordView, base64};

/// The line. Its fields come in this order.
#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    partition: i32,
    offset: i64,
    timestamp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_epoch: Option<i32>,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    /// A list and not an object: names may repeat, and their order counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<Header<'a>>,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

/// Appends the line, with its newline.
pub fn print(record: &RecordView<'_>, out: &mut Vec<u8>) {
    let (key, key_base64) = text_or_base64(record.key);
    let (value, value_base64) = text_or_base64(record.value);
    let headers = record.headers.iter().map(|&(name, value)| {
        let (value, value_base64) = text_or_base64(value);
        Header {
            name,
            value,
            value_base64,
        }
    });
    let line = Line {
        topic: record.topic,
        partition: record.partition,
        offset: record.offset,
        timestamp: record.timestamp,
        leader_epoch: Some(record.leader_epoch).filter(|&epoch| epoch >= 0),
        key,
        key_base64,
        value,
        value_base64,
        headers: headers.collect(),
    };
    // Neither can the line be no JSON (no maps with odd keys) nor a Vec refuse bytes.
    let _ = serde_json::to_writer(&mut *out, &line);
    out.push(b'\n');
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(text), None),
        Some((bytes, Err(_))) => (None, Some(base64(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_bytes_become_base64() {
        let record = RecordView {
            topic: "t",
            partition: 1,
            offset: 7,
            timestamp: 5,
            leader_epoch: -1,
            key: None,
            value: Some(&[0xff, 0x00]),
            headers: vec![("a", Some(b"x\n")), ("a", None)],
        };
        let mut out = Vec::new();
        print(&record, &mut out);
        let expected = concat!(
            r#"{"topic":"t","partition":1,"offset":7,"timestamp":5,"key":null,"value":null,"#,
            r#""value_base64":"/wA=","headers":[{"name":"a","value":"x\n"},"#,
            r#"{"name":"a","value":null}]}"#,
            "\n"
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
