//! Tests of the room as its callers see it.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::{Error, ErrorKind};

const GIB: u64 = 1 << 30;

const HOST: Host = Host {
    memory_limit: 64 * GIB,
    memory_available: 48 * GIB,
    cores: 16,
    cache_free: Some((500 * GIB, 1000 * GIB)),
};

const NO_ENV: [(&str, &str); 0] = [];

fn set(assignments: &[&str]) -> Result<Config, Error> {
    let layers = assignments.iter().fold(Layers::new(), |layers, text| layers.set(*text));
    layers.build().map(|(config, _)| config)
}

fn refused(layers: Layers) -> String {
    layers.build().map(|(config, _)| config).unwrap_err().to_string()
}

fn settings(assignments: &[&str]) -> Result<Settings, Error> {
    set(assignments)?.resolve(&HOST)
}

#[test]
fn keys_are_those_of_the_struct() {
    let table = toml::Table::try_from(Config::default()).unwrap();
    let mut of_struct: Vec<String> = Vec::new();
    for (section, value) in &table {
        for leaf in value.as_table().into_iter().flat_map(|table| table.keys()) {
            of_struct.push(format!("{section}.{leaf}"));
        }
    }
    let mut of_list: Vec<_> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    of_list.sort();
    assert_eq!(of_list, of_struct);
    let help = KEYS.iter().flat_map(|key| key.help.lines());
    assert_eq!(help.filter(|line| line.len() > 96).collect::<Vec<_>>(), Vec::<&str>::new());
}

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

#[test]
fn the_stronger_layer_wins_and_is_the_origin() {
    let file = "[cache]\nram = \"1GiB\"\npolicy = \"lru\"\n\n[prefetch]\ninflight = 1\n";
    let (config, origins) = Layers::new()
        .set("prefetch.inflight=3")
        .flag("cache.ram", "4GiB", "--ram")
        .env([("BELADY_CACHE_RAM", "2GiB"), ("BELADY_PREFETCH_INFLIGHT", "2")])
        .file("a.toml", file)
        .file("b.toml", "log.level = \"debug\"")
        .build()
        .unwrap();
    assert_eq!(config.cache.ram, Size::Bytes(Bytes(4 * GIB)));
    assert_eq!(config.prefetch.inflight, 3);
    let origin = |key| origins.of(key).to_string();
    assert_eq!(origin("cache.ram"), "flag --ram");
    assert_eq!(origin("prefetch.inflight"), "flag --set");
    assert_eq!(origin("cache.policy"), "file a.toml:3");
    assert_eq!(origin("log.level"), "file b.toml:1");
    assert_eq!(origin("cache.dir"), "default");
}

#[test]
fn text_takes_the_type_of_its_key() {
    let config = set(&[
        "cache.ram=\"4GiB\"",
        "cache.dir=/1",
        "log.file=true",
        "mount.allow-other = true",
        "mount.options=noatime, nodev",
        "cache.disk=4096",
    ]);
    let config = config.unwrap();
    assert_eq!(config.cache.ram, Size::Bytes(Bytes(4 * GIB)));
    assert_eq!(config.cache.disk, Size::Bytes(Bytes(4096)));
    assert_eq!(config.log.file.to_str(), Some("true"));
    assert!(config.mount.allow_other);
    assert_eq!(config.mount.options, ["noatime", "nodev"]);
    assert_eq!(set(&["cache={ram=\"1GiB\"}"]).unwrap(), set(&["cache.ram=1GiB"]).unwrap());
}

#[test]
fn streams_of_a_stronger_layer_replace_all_others() {
    let file = "[[stream]]\nname = \"a\"\norder = \"x\"\n[[stream]]\nname = \"b\"\norder = \"y\"\n";
    let (config, origins) = Layers::new().file("f", file).build().unwrap();
    assert_eq!(config.streams.len(), 2);
    assert_eq!(origins.of("stream[1].order").to_string(), "file f:6");
    let (config, origins) =
        Layers::new().file("f", file).stream("c", "z", "--order").build().unwrap();
    assert_eq!(config.streams, [StreamConfig { name: "c".into(), order: "z".into() }]);
    assert_eq!(origins.of("stream[0].order").to_string(), "flag --order");
    assert_eq!(origins.of("stream[1].order"), Origin::Default);
    let one = "stream=[{name=\"d\", order=\"w\"}]";
    let (config, _) = Layers::new().file("f", file).set(one).build().unwrap();
    assert_eq!(config.streams.len(), 1);
}

#[test]
fn wrong_settings_name_their_place_and_what_was_meant() {
    let message = |layers| refused(layers).lines().next().unwrap_or_default().to_owned();
    assert_eq!(
        message(Layers::new().env([("BELADY_CACHE_RM", "1GiB")])),
        "BELADY_CACHE_RM: unknown key `cache.rm`; did you mean `cache.ram`?"
    );
    assert_eq!(
        message(Layers::new().env([("BELADY_PREFETCH_INFLIGHT", "many")])),
        "BELADY_PREFETCH_INFLIGHT: prefetch.inflight: \"many\" is not accepted; \
         expected a whole number"
    );
    assert_eq!(
        message(Layers::new().set("mount.allow_other=true")),
        "--set: unknown key `mount.allow_other`; did you mean `mount.allow-other`?"
    );
    assert_eq!(
        message(Layers::new().set("ram=4GiB")),
        "--set: unknown key `ram`; did you mean `cache.ram`?"
    );
    assert_eq!(
        message(Layers::new().flag("cache.ram", "10 Gigs", "--ram")),
        "--ram: cache.ram: \"10 Gigs\" is not a size; \
         write it like \"64GiB\", \"500MB\", \"25%\" or \"auto\""
    );
    assert_eq!(
        message(Layers::new().set("cache.policy=3")),
        "--set: cache.policy: \"3\" is not accepted; \
         expected one of `auto`, `belady`, `lru`, `minio`, `unread-first`, `none`"
    );
    assert_eq!(
        message(Layers::new().file("f", "[source]\nconsistency = 3")),
        "f:2: source.consistency: 3 is not accepted; expected `revalidate` or `immutable`"
    );
    assert_eq!(
        message(Layers::new().file("f", "[prefetch]\ninflight = -1")),
        "f:2: prefetch.inflight: -1 is not accepted; expected a whole number"
    );
    assert_eq!(
        message(Layers::new().file("f", "[cache]\nram = true")),
        "f:2: cache.ram: true is not a size; \
         write it like \"64GiB\", \"500MB\", \"25%\" or \"auto\""
    );
    let error = Layers::new().set("cache.ram").build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn the_first_error_of_a_file_is_shown_though_a_flag_overrides_it() {
    let file = "[prefetch]\nwindow = \"x\"\n[cache]\nrm = 1\n";
    let layers = Layers::new().file("f", file).set("prefetch.window=auto");
    assert!(refused(layers).starts_with("f:2: prefetch.window"));
}

#[test]
fn foreign_variables_are_passed_over() {
    let foreign = ["BELADY_LOG", "BELADY_CONFIG", "BELADY_HOME_DIR", "BELADY_CACHE", "PATH"];
    let (config, _) = Layers::new().env(foreign.map(|name| (name, "x"))).build().unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(Layers::new().env(NO_ENV).build().unwrap().0, Config::default());
    assert!(refused(Layers::new().env([("BELADY_STREAM_NAME", "x")])).contains("[[stream]]"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    let table = toml::Table::try_from(Config::default()).unwrap();
    for key in KEYS {
        let value = table[key.section()][key.leaf()].to_string();
        let (config, origins) = Layers::new().env([(key.env(), value)]).build().unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(origins.of(key.name), Origin::Env(key.env()));
    }
}

#[test]
fn auto_ram_takes_the_lesser_share() {
    let config = Config::default();
    let settings = config.resolve(&HOST).unwrap();
    assert_eq!(settings.cache.ram_bytes, 16 * GIB);
    assert!(
        settings
            .decisions
            .contains(&"cache.ram auto: 16 GiB = 25% of the memory limit 64 GiB".to_owned()),
        "{:?}",
        settings.decisions
    );
    let busy = Host { memory_available: 10 * GIB, ..HOST };
    let settings = config.resolve(&busy).unwrap();
    assert_eq!(settings.cache.ram_bytes, 5 * GIB);
    let none = Host { memory_available: 0, ..HOST };
    assert!(config.resolve(&none).unwrap_err().message().contains("less than one block"));
}

#[test]
fn the_disk_tier_leaves_what_must_stay_free() {
    assert_eq!(settings(&[]).unwrap().cache.disk, None);
    let disk = |given: &[&str]| settings(given).map(|settings| settings.cache.disk);
    let bytes = |given: &[&str]| disk(given).unwrap().map(|disk| disk.bytes);
    assert_eq!(bytes(&["cache.dir=/c"]), Some(450 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=50%"]), Some(250 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=100%"]), Some(450 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=0"]), None);
    assert_eq!(bytes(&["cache.dir=/c", "cache.min-free=60%"]), None);
    assert_eq!(bytes(&["cache.dir=/c", "cache.min-free=auto"]), Some(450 * GIB));
    assert!(disk(&["cache.dir=/c", "cache.disk=451GiB"]).is_err());
    assert!(disk(&["cache.disk=80%"]).is_err());
    let config = set(&["cache.dir=/c"]).unwrap();
    let error = config.resolve(&Host { cache_free: None, ..HOST }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cache);
}

#[test]
fn relations_between_keys_are_checked() {
    for given in [
        &["cache.ram=65GiB"][..],
        &["cache.ram=1GiB", "prefetch.window=1025MiB"],
        &["prefetch.window=4096"],
        &["prefetch.inflight=0"],
        &["mount.threads=65"],
        &["source.scan-threads=0"],
        &["mount.force-allow-other=true"],
        &["mount.control="],
        &["mount.control=here"],
        &["mount.options=allow_other"],
        &["mount.options=[\"a,b\"]"],
        &["log.file=belady.log"],
        &["log.level=belady=lots"],
        &["stream=[{order=\"x\"}]"],
        &["stream=[{name=\"a b\", order=\"x\"}]"],
    ] {
        let error = settings(given).expect_err(&format!("{given:?}"));
        assert_eq!(error.kind(), ErrorKind::Config, "{given:?}");
    }
    let window = settings(&["prefetch.window=10%"]).unwrap().prefetch.window_bytes;
    assert_eq!(window, Some(16 * GIB / 10));
    assert_eq!(settings(&[]).unwrap().prefetch.window_bytes, None);
}

#[test]
fn show_is_aligned_and_tells_origins() {
    let (config, origins) = Layers::new()
        .flag("cache.ram", "16GiB", "--ram")
        .stream("train", "sequential", "--order")
        .build()
        .unwrap();
    let shown = render_show(&config, &origins, true);
    let ram = shown.lines().find(|line| line.starts_with("cache.ram")).unwrap();
    assert_eq!(
        ram.split_whitespace().collect::<Vec<_>>(),
        ["cache.ram", "=", "\"16GiB\"", "(flag", "--ram)"]
    );
    assert_eq!(shown.lines().count(), KEYS.len() + 2);
    let column = |line: &str| line.find(" = ");
    assert!(shown.lines().all(|line| column(line) == column(ram)), "{shown}");
    assert!(!render_show(&config, &origins, false).contains("(default)"));
}

/// Text that is nearly a configuration, so that more than the parser is reached.
fn nearly() -> impl Strategy<Value = String> {
    let words = [
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        "cache",
        "stream",
        "mount",
        ".",
        "ram",
        "dir",
        "name",
        "order",
        "options",
        "=",
        "\"",
        "'",
        "\"25%\"",
        "\"1GiB\"",
        "4096",
        "-1",
        "1e400",
        "true",
        "\n",
        "\r\n",
        " ",
        ",",
        "#",
        "é",
        "\u{0}",
        "1979-05-27",
        "[0]",
        "rm",
        "threads",
        "nan",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..24)
        .prop_map(|words| words.concat())
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

    #[test]
    fn arbitrary_text_never_panics(any in "\\PC*", near in nearly(), key in "[a-z.\\[\\]_-]{0,20}") {
        for text in [&any, &near] {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Period>();
            for layers in [
                Layers::new().file("f", text),
                Layers::new().set(text),
                Layers::new().set(format!("{key}={text}")),
                Layers::new().flag(key.clone(), text, "--flag"),
                Layers::new().env([(format!("BELADY_{}", key.to_uppercase()), text)]),
                Layers::new().set(format!("stream={text}")).set(format!("log.level={text}")),
                Layers::new().stream(text, text, "--order"),
            ] {
                if let Ok((config, origins)) = layers.build() {
                    let _ = render_show(&config, &origins, true);
                    let _ = config.resolve(&HOST);
                }
            }
        }
    }

    #[test]
    fn what_is_shown_can_be_set_again(ram: u64, seconds in 0..1_000_000_u64, path in "/[^\\x00-\\x1f]*") {
        let config = Config {
            cache: CacheConfig {
                ram: Size::Bytes(Bytes(ram)),
                dir: path.into(),
                ..CacheConfig::default()
            },
            source: SourceConfig {
                revalidate: Period(Duration::from_secs(seconds)),
                ..SourceConfig::default()
            },
            ..Config::default()
        };
        let shown = render_show(&config, &Origins::default(), false);
        let (again, _) = Layers::new().file("shown", shown).build().unwrap();
        prop_assert_eq!(again, config);
    }
}
