//! One record as one line of JSON.
//!
//! Keys, values and header values are text where they are UTF-8; otherwise the text is null and a
//! field of the same name with `_base64` holds the bytes.

use serde_json::{Map, Value, json};

use super::format::{RecordView, base64};

/// Appends the line, with its newline.
pub fn print(record: &RecordView<'_>, out: &mut Vec<u8>) {
    let mut line = Map::new();
    line.insert("topic".to_owned(), json!(record.topic));
    line.insert("partition".to_owned(), json!(record.partition));
    line.insert("offset".to_owned(), json!(record.offset));
    line.insert("timestamp".to_owned(), json!(record.timestamp));
    if record.leader_epoch >= 0 {
        line.insert("leader_epoch".to_owned(), json!(record.leader_epoch));
    }
    insert_bytes(&mut line, "key", record.key);
    insert_bytes(&mut line, "value", record.value);
    if !record.headers.is_empty() {
        // A list and not an object: names may repeat, and their order counts.
        let headers = record.headers.iter().map(|(name, value)| {
            let mut header = Map::new();
            header.insert("name".to_owned(), json!(name));
            insert_bytes(&mut header, "value", *value);
            Value::Object(header)
        });
        line.insert("headers".to_owned(), headers.collect());
    }
    out.extend_from_slice(Value::Object(line).to_string().as_bytes());
    out.push(b'\n');
}

fn insert_bytes(line: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => line.insert(name.to_owned(), Value::Null),
        Some((_, Ok(text))) => line.insert(name.to_owned(), json!(text)),
        Some((bytes, Err(_))) => {
            line.insert(name.to_owned(), Value::Null);
            line.insert(format!("{name}_base64"), json!(base64(bytes)))
        }
    };
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
            headers: vec![("a", Some(b"x")), ("a", None)],
        };
        let mut out = Vec::new();
        print(&record, &mut out);
        let line: Value = serde_json::from_slice(&out).expect("one JSON document");
        assert_eq!(
            line,
            json!({
                "topic": "t", "partition": 1, "offset": 7, "timestamp": 5, "key": null,
                "value": null, "value_base64": "/wA=",
                "headers": [{"name": "a", "value": "x"}, {"name": "a", "value": null}],
            })
        );
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1);
    }
}
