//! Keys, help and what is shown.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[test]
fn keys_are_those_of_the_struct() {
    let table = toml::Table::try_from(Config::default()).unwrap();
    let mut of_struct: Vec<String> = Vec::new();
    for (section, value) in &table {
        for leaf in value.as_table().into_iter().flat_map(|table| table.keys()) {
            of_struct.push(format!("{section}.{leaf}"));
        }
    }
    let mut of_list: Vec<_> = KEYS.iter().map(Key::name).collect();
    of_list.sort();
    assert_eq!(of_list, of_struct);
    let help = KEYS.iter().flat_map(|key| key.help.iter().map(|line| line.trim_start()));
    assert_eq!(help.filter(|line| line.len() > 96).collect::<Vec<_>>(), Vec::<&str>::new());
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

proptest! {
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
