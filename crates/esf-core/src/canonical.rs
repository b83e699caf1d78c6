//! Canonical JSON: the one text by which equal values are equal bytes, so that they can be digested.
//! Invariant: object keys ascend by their bytes, there is no white space, and numbers are printed as
//! `serde_json` prints them; reading the text and writing it again changes nothing.

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;

/// The canonical text of `value`.
pub fn to_text(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string())
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            // Sorted here and not left to the map: its order depends on features of other crates.
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| name.as_bytes());
            out.push('{');
            for (index, (name, field)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write(field, out);
            }
            out.push('}');
        }
    }
}

/// The digest of the canonical text of `value`, under `context`.
///
/// # Panics
/// When `value` cannot be JSON (a map with keys that are not strings), which is a bug of its type.
pub fn digest<T: Serialize + ?Sized>(context: &str, value: &T) -> Digest {
    let value = serde_json::to_value(value).expect("records and commands have string keys only");
    Digest::in_context(context, to_text(&value).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn keys_ascend_and_nothing_is_optional() {
        let value = json!({"b": [1, {"z": null, "a": "\n"}], "a": 1.5, "é": true, "A": {}});
        assert_eq!(to_text(&value), r#"{"A":{},"a":1.5,"b":[1,{"a":"\n","z":null}],"é":true}"#);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reading_and_writing_again_changes_nothing(value in any_json()) {
            let text = to_text(&value);
            let again: Value = serde_json::from_str(&text).expect("canonical text is JSON");
            prop_assert_eq!(&again, &value);
            prop_assert_eq!(to_text(&again), text);
        }
    }
}
