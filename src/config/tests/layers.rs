//! Precedence, origins and refusals of written settings.

use super::*;

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
        "f:2: prefetch.inflight: -1 is not accepted; \
         expected a whole number from 0 to 4294967295"
    );
    assert_eq!(
        message(Layers::new().file("f", "[cache]\nram = true")),
        "f:2: cache.ram: true is not a size; \
         write it like \"64GiB\", \"500MB\", \"25%\" or \"auto\""
    );
    assert_eq!(
        message(Layers::new().file("f", "[source]\nconsistency = {}")),
        "f:2: source.consistency: a table is not accepted; expected `revalidate` or `immutable`"
    );
    assert_eq!(
        message(Layers::new().set("stream[0].order=x")),
        "--set: streams are set as a whole"
    );
    assert_eq!(
        message(Layers::new().set("derived[0].resize=3")),
        "--set: derived samples are set as a whole"
    );
    assert_eq!(
        message(Layers::new().set(r#"derived=[{name="a", rezise=3}]"#)),
        "--set: unknown key `derived[0].rezise`; did you mean `derived[0].resize`?"
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
    assert!(refused(Layers::new().env([("BELADY_STREAM_NAME", "x")])).contains("[[stream]]"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    let table = toml::Table::try_from(Config::default()).unwrap();
    for key in KEYS {
        let value = table[key.section][key.leaf()].to_string();
        let (config, origins) = Layers::new().env([(key.env(), value)]).build().unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(origins.of(&key.name()), Origin::Env(key.env()));
    }
}

#[test]
fn quoted_names_are_one_name() {
    for (text, key) in [
        ("\"cache.ram\" = \"1GiB\"", "1: unknown key `cache.ram`"),
        ("\n[\"stream[9]\"]\nname = \"x\"", "2: unknown key `stream[9]`"),
        ("[[stream]]\n\"a.name\" = \"x\"", "2: unknown key `stream[0].a.name`"),
        ("[cache]\n\"ram.x\" = 1", "2: unknown key `cache.ram.x`"),
    ] {
        assert!(refused(Layers::new().file("f", text)).starts_with(&format!("f:{key}")), "{text}");
    }
}
