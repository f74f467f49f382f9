//! The demo's records: orders of some customers, numbered within each customer.

use serde::{Deserialize, Serialize};

use super::ledger::RecordId;

/// The topic that the demo creates.
pub(super) const TOPIC: &str = "orders";

/// Its partitions: each of the three nodes leads two.
pub(super) const PARTITIONS: i32 = 6;

/// Customers, that is keys.
pub(super) const CUSTOMERS: u32 = 64;

const GOODS: [&str; 8] = [
    "jacket",
    "trousers",
    "cap",
    "cushion",
    "waistcoat",
    "skirt",
    "satchel",
    "slippers",
];

#[derive(Serialize, Deserialize)]
struct Order {
    customer: u32,
    order: u64,
    item: String,
    cents: u64,
}

/// The key of a record.
pub(super) fn key(id: RecordId) -> String {
    format!("customer-{:02}", id.key)
}

/// The value of a record. It says who it is, so that a reader needs nothing else to judge it.
pub(super) fn value(id: RecordId) -> String {
    let pick = id.number.wrapping_mul(31).wrapping_add(u64::from(id.key));
    let item = GOODS[(pick % GOODS.len() as u64) as usize];
    let cents = 990 + pick * 700 % 20_000;
    format!(
        r#"{{"customer":{},"order":{},"item":"corduroy {item}","cents":{cents}}}"#,
        id.key, id.number
    )
}

/// Whose record this is; `None` for one that the demo did not write.
pub(super) fn identify(record_key: Option<&[u8]>, record_value: Option<&[u8]>) -> Option<RecordId> {
    let order: Order = serde_json::from_slice(record_value?).ok()?;
    let id = RecordId {
        key: order.customer,
        number: order.order,
    };
    // The whole record has to be what was sent, not only its number.
    let is_ours = record_key? == key(id).as_bytes() && record_value? == value(id).as_bytes();
    is_ours.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_itself() {
        let id = RecordId { key: 7, number: 12 };
        let (key, value) = (key(id), value(id));
        assert_eq!(
            identify(Some(key.as_bytes()), Some(value.as_bytes())),
            Some(id)
        );
    }

    #[test]
    fn a_damaged_or_foreign_record_is_nobodys() {
        let id = RecordId { key: 7, number: 12 };
        let (key, value) = (key(id), value(id));
        let damaged = value.replace("cents\":", "cents\":1");
        assert_eq!(
            identify(Some(key.as_bytes()), Some(damaged.as_bytes())),
            None
        );
        assert_eq!(identify(Some(b"customer-08"), Some(value.as_bytes())), None);
        assert_eq!(identify(None, Some(value.as_bytes())), None);
        assert_eq!(identify(Some(key.as_bytes()), None), None);
        assert_eq!(identify(Some(key.as_bytes()), Some(b"hello")), None);
    }
}
