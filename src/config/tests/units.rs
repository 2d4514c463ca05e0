//! Quantities are read exactly, and what is shown is read back.

use std::time::Duration;

use proptest::prelude::*;

use super::GIB;
use crate::config::{Bytes, Period, Size};

#[test]
fn sizes_are_exactly_what_is_written() {
    let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0).ok();
    assert_eq!(bytes("64GiB"), Some(64 * GIB));
    assert_eq!(bytes("1.5 TB"), Some(1_500_000_000_000));
    assert_eq!(bytes(" 4096 "), Some(4096));
    assert_eq!(bytes("4 kb"), Some(4000));
    assert_eq!(bytes("0.5KiB"), Some(512));
    assert_eq!(bytes("18446744073709551615"), Some(u64::MAX));
    for text in ["", "GiB", "-1", "1e3", "64G", "4 GiB x", "1.", ".5GB", "1.2.3", "16384PiB", "∞"]
    {
        assert_eq!(bytes(text), None, "{text}");
    }
}

#[test]
fn shares_and_periods_are_read() {
    assert_eq!("25%".parse::<Size>().unwrap().of(400), Some(100));
    assert_eq!("100 %".parse::<Size>().unwrap().of(u64::MAX), Some(u64::MAX));
    assert_eq!("auto".parse::<Size>().unwrap().of(400), None);
    for text in ["101%", "%", "nan%", "inf%", "1e1%", "-1%", "Auto "] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
    let period = |text: &str| text.parse::<Period>().map(|period| period.0).ok();
    assert_eq!(period("200ms"), Some(Duration::from_millis(200)));
    assert_eq!(period("1.5 h"), Some(Duration::from_secs(5400)));
    assert_eq!(period("5m"), Some(Duration::from_secs(300)));
    assert_eq!(period("60"), None);
    assert_eq!(period("18446744073709551615d"), None);
}

#[test]
fn human_sizes_have_one_decimal() {
    let human = |bytes| Bytes(bytes).human();
    assert_eq!(human(0), "0 B");
    assert_eq!(human(1023), "1023 B");
    assert_eq!(human(16 * GIB), "16 GiB");
    assert_eq!(human(GIB * 59 / 10), "5.9 GiB");
}

proptest! {
    #[test]
    fn bytes_round_trip(bytes: u64) {
        let bytes = Bytes(bytes);
        prop_assert_eq!(bytes.to_string().parse::<Bytes>().unwrap(), bytes);
        let whole = Bytes(bytes.0 & !0xfff_ffff);
        prop_assert_eq!(whole.to_string().parse::<Size>().unwrap(), Size::Bytes(whole));
    }

    #[test]
    fn shares_round_trip(percent in 0.0..=100.0_f64, whole: u64) {
        let size = Size::Percent(percent);
        prop_assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
        prop_assert!(size.of(whole).unwrap() <= whole);
    }

    #[test]
    fn periods_round_trip(seconds: u64, nanos in 0..1_000_000_000_u32, shift in 0..64_u32) {
        let period = Period(Duration::new(seconds >> shift, nanos));
        prop_assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        let whole = Period(Duration::from_secs(seconds));
        prop_assert_eq!(whole.to_string().parse::<Period>().unwrap(), whole);
    }
}
