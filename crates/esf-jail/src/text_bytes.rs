//! Serde form of bytes that are mostly text: a string where they are UTF-8, else numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes<'a> {
    Text(std::borrow::Cow<'a, str>),
    Raw(std::borrow::Cow<'a, [u8]>),
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Bytes::Text(text.into()).serialize(serializer),
        Err(_) => Bytes::Raw(bytes.into()).serialize(serializer),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    Ok(match Bytes::deserialize(deserializer)? {
        Bytes::Text(text) => text.into_owned().into_bytes(),
        Bytes::Raw(bytes) => bytes.into_owned(),
    })
}
