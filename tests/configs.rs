//! Every file under `mount-configs/` is a test: those beside `default.toml` must build and resolve. Those in
//! `invalid/` must be refused with the message in their first line.

use std::path::{Path, PathBuf};

use belady::config::{Config, Host, Layers, Origins, Settings, default_toml, render_show, resolve};
use belady::error::Result;

/// A node on which every valid file resolves: 64 GiB of memory, 1 of 2 TiB free on the disk.
const HOST: Host = Host {
    memory_limit: 64 << 30,
    memory_available: 48 << 30,
    cores: 16,
    cache_free: Some((1 << 40, 2 << 40)),
    cache_in_memory: false,
    cache_hangs: false,
    cache_held: 0,
    buffers_held: 0,
};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-configs")
}

/// The TOML files of a directory. It may hold nothing else but `invalid/`.
fn files(directory: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            assert_eq!(name, "invalid", "{} is not tested", path.display());
            continue;
        }
        assert!(name.ends_with(".toml"), "{} is not tested", path.display());
        files.push((name, std::fs::read_to_string(&path)?));
    }
    files.sort();
    Ok(files)
}

fn load(name: &str, text: &str) -> Result<(Config, Origins, Settings)> {
    let (config, origins) = Layers::new().file(name, text).build()?;
    let settings = resolve(&config, &HOST)?;
    Ok((config, origins, settings))
}

#[test]
fn every_valid_file_resolves() {
    let files = files(&directory()).unwrap();
    assert!(files.len() >= 3, "only {} files", files.len());
    for (name, text) in files {
        let (config, origins, _) = load(&name, &text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let shown = render_show(&config, &origins, true);
        assert!(shown.contains(&format!("file {name}:")), "{name} sets nothing:\n{shown}");
    }
}

#[test]
fn every_invalid_file_is_refused_with_the_message_in_its_first_line() {
    let files = files(&directory().join("invalid")).unwrap();
    assert!(files.len() >= 6, "only {} files", files.len());
    let mut wrong = Vec::new();
    for (name, text) in files {
        let expected = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or("");
        match load(&name, &text) {
            Ok(_) => wrong.push(format!("{name}: accepted")),
            Err(error) if error.message() != expected => {
                wrong.push(format!("{name}:\n  states {expected}\n  given  {}", error.message()));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn default_toml_is_what_belady_writes() {
    let file = directory().join("default.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, default_toml(), "write the output of default_toml() to {}", file.display());
}

#[test]
fn default_toml_holds_the_defaults() {
    let (config, _, settings) = load("default.toml", &default_toml()).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(settings, resolve(&Config::default(), &HOST).unwrap());
}

#[test]
fn the_imagenet_file_gives_the_settings_it_describes() {
    let text = std::fs::read_to_string(directory().join("imagenet-pytorch.toml")).unwrap();
    let (_, _, settings) = load("imagenet-pytorch.toml", &text).unwrap();
    assert_eq!(settings.source.revalidate, None);
    assert_eq!(settings.cache.ram_bytes, 16 << 30);
    let disk = settings.cache.disk.unwrap();
    let tenth = (2_u64 << 40) / 10;
    assert_eq!((disk.bytes, disk.min_free_bytes), ((1 << 40) - tenth, tenth));
    assert_eq!(settings.prefetch.inflight, 64);
    assert_eq!(settings.streams.len(), 1);
    assert!(settings.streams[0].order.ends_with("root=train"));
}
