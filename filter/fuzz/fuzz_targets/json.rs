//! Any bytes as a batch in JSON, and the same in msgpack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::events::batch::{json, msgpack};
use warmpath_fuzz::{MOST_SAID, check_batch, enough, within};

fuzz_target!(|bytes: &[u8]| {
    let batch = match within(enough(bytes.len()), || json(bytes)) {
        Ok(batch) => batch,
        Err(why) => return assert!(why.len() <= MOST_SAID, "{} bytes are said", why.len()),
    };
    check_batch(&batch, bytes.len());
    let mut packed = Vec::new();
    let mut from = serde_json::Deserializer::from_slice(bytes);
    // What is passed may be no text or no number at all, or too deep: that has no equal in msgpack.
    if serde_transcode::transcode(&mut from, &mut rmp_serde::Serializer::new(&mut packed)).is_err() {
        return;
    }
    match msgpack(&packed) {
        Ok(same) => assert_eq!(same, batch),
        Err(why) => assert_eq!(why, "depth limit exceeded"),
    }
});
