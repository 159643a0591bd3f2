//! Any bytes as a batch in msgpack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::events::batch::msgpack;
use warmpath_fuzz::{MOST_SAID, check_batch, enough, within};

fuzz_target!(|bytes: &[u8]| {
    match within(enough(bytes.len()), || msgpack(bytes)) {
        Ok(batch) => check_batch(&batch, bytes.len()),
        Err(why) => assert!(why.len() <= MOST_SAID, "{} bytes are said", why.len()),
    }
});
