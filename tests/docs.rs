//! The documents are true as far as a program can tell.
//!
//! Goal: a reader who copies a block gets what the page says. Method: shell commands are run on a dataset of
//! the test's own, belady checks settings, orders are parsed, links are followed, and figures are compared
//! with the committed results of the benches. The tests of mounts run the commands that need a mount.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod documents;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use belady::config::KEYS;
use belady::order::OrderSpec;
use documents::{Block, Page, Scene, is_belady, pages, root};
use serde_json::Value;
use tempfile::TempDir;

/// Languages that a block may have.
const LANGUAGES: [&str; 5] = ["sh", "console", "toml", "python", "text"];

/// Commands in the documents that are not belady's: how they begin, and why they are not run.
const OTHERS: [(&str, &str); 5] = [
    ("scripts/demo", "installs packages and trains for minutes"),
    ("scripts/test", "runs these tests, too"),
    ("scripts/bench", "measures for minutes; a test must not depend on speed"),
    ("cargo install", "builds a release, and writes outside of the build directory"),
    ("python train.py", "stands for a job of the reader's own"),
];

fn blocks() -> Vec<Block> {
    pages().iter().flat_map(Page::blocks).collect()
}

/// Runs a command that must succeed.
#[track_caller]
fn succeeds(at: &str, command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{at}: {command:?} has failed: {said}");
}

/// The program, without the settings of the user who runs the tests.
fn alone(mut command: Command, scene: &Scene) -> Command {
    command.env_remove("BELADY_CONFIG").env("XDG_RUNTIME_DIR", &scene.work);
    command
}

#[test]
fn every_block_has_a_language() {
    let blocks = blocks();
    assert!(blocks.len() > 30, "only {}", blocks.len());
    for block in blocks {
        let language = block.language.as_str();
        assert!(LANGUAGES.contains(&language), "{}: {language:?} is no language", block.at);
        let hidden = !block.is_shell() && block.text.lines().any(is_belady);
        assert!(!hidden, "{}: a command that is not run", block.at);
    }
}

/// A command is one of belady and is run, or it is on the list.
#[test]
fn every_command_is_known() {
    let shells = blocks().into_iter().filter(Block::is_shell);
    let commands: Vec<(String, String)> = shells
        .flat_map(|block| block.commands().into_iter().map(move |line| (block.at.clone(), line)))
        .collect();
    let listed = |command: &str| OTHERS.iter().any(|(begin, _)| command.starts_with(begin));
    for (at, command) in &commands {
        assert!(is_belady(command) || listed(command), "{at}: {command:?} is not run");
    }
    for (begin, reason) in OTHERS {
        let shown = commands.iter().any(|(_, command)| command.starts_with(begin));
        assert!(shown && !reason.is_empty(), "{begin:?} is listed and not shown");
    }
    let run = commands.iter().filter(|(_, command)| is_belady(command)).count();
    assert!(run > 60, "only {run} commands are run");
}

#[test]
fn commands_without_a_mount_do_what_is_shown() {
    let program = Path::new(env!("CARGO_BIN_EXE_belady"));
    let mut run = 0;
    for page in pages() {
        let directory = TempDir::new().unwrap();
        let scene = Scene::new(directory.path());
        let blocks = page.blocks();
        blocks.iter().for_each(|block| scene.keep(block));
        for block in blocks.iter().filter(|block| block.is_shell() && !block.mounts()) {
            for command in block.commands().iter().filter(|command| is_belady(command)) {
                let shell = scene.shell(&block.at, command, program);
                succeeds(&block.at, &mut alone(shell, &scene));
                run += 1;
            }
        }
    }
    assert!(run > 8, "only {run}");
}

#[test]
fn settings_are_valid() {
    let mut checked = 0;
    for block in blocks().iter().filter(|block| block.language == "toml") {
        let directory = TempDir::new().unwrap();
        let scene = Scene::new(directory.path());
        let file = scene.work.join("shown.toml");
        fs::write(&file, scene.place(&block.at, &block.text)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_belady"));
        command.args(["config", "check"]).arg(&file);
        succeeds(&block.at, &mut alone(command, &scene));
        checked += 1;
    }
    assert!(checked > 2, "only {checked}");
}

#[test]
fn scripts_are_python() {
    let mut checked = 0;
    for block in blocks().iter().filter(|block| block.language == "python") {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", "import ast, sys; ast.parse(sys.stdin.read())"]).stdin(Stdio::piped());
        let mut python = python.spawn().unwrap();
        python.stdin.take().unwrap().write_all(block.text.as_bytes()).unwrap();
        assert!(python.wait().unwrap().success(), "{}: {}", block.at, block.text);
        checked += 1;
    }
    assert!(checked > 2, "only {checked}");
}

/// A page without its blocks, line by line.
fn prose(page: &Page) -> Vec<(String, &str)> {
    let (mut lines, mut fenced) = (Vec::new(), false);
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((format!("{}:{number}", page.name), line));
        }
    }
    lines
}

/// The text between backticks in a page's prose.
fn code(page: &Page) -> Vec<(String, &str)> {
    let mut spans = Vec::new();
    for (at, line) in prose(page) {
        assert!(line.matches('`').count() % 2 == 0, "{at}: code goes on in the next line");
        spans.extend(line.split('`').skip(1).step_by(2).map(|span| (at.clone(), span)));
    }
    spans
}

/// Whether a text is meant as an order: `name:key=value`, without placeholders.
fn is_order(text: &str) -> bool {
    let Some((name, keys)) = text.split_once(':') else { return false };
    let lower = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || "-_".contains(c));
    let key = keys.split_once('=').map_or("", |(key, _)| key);
    !name.is_empty() && lower(name) && !key.is_empty() && lower(key)
}

#[test]
fn orders_in_the_text_parse() {
    let mut parsed = 0;
    for page in pages() {
        for (at, text) in code(&page) {
            // A sentence that belady prints ends with an order.
            let Some(order) = text.split(' ').find(|word| is_order(word)) else { continue };
            let spec: Result<OrderSpec, _> = order.parse();
            assert!(spec.is_ok(), "{at}: {order}: {}", spec.unwrap_err());
            parsed += 1;
        }
    }
    assert!(parsed > 16, "only {parsed}");
}

#[test]
fn keys_of_settings_exist() {
    let sections: Vec<&str> = KEYS.iter().map(|key| key.section).collect();
    let mut named = 0;
    for page in pages() {
        for (at, text) in code(&page) {
            let key = text.split('=').next().unwrap();
            let Some((section, leaf)) = key.split_once('.') else { continue };
            let is_key = leaf.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if !sections.contains(&section) || !is_key || ["json", "toml", "txt"].contains(&leaf) {
                continue;
            }
            assert!(KEYS.iter().any(|known| known.name() == key), "{at}: there is no key {key}");
            named += 1;
        }
    }
    assert!(named > 15, "only {named}");
}

/// The anchors of a page's headings, as hosts of repositories make them.
fn anchors(page: &Page) -> Vec<String> {
    let lines = prose(page).into_iter().map(|(_, line)| line).filter(|line| line.starts_with('#'));
    let headings = lines.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let keep = |c: &char| c.is_alphanumeric() || "-_".contains(*c);
    headings.map(|text| text.replace(' ', "-").chars().filter(keep).collect()).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut all = pages();
    for name in ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        all.push(Page { name: name.to_owned(), text });
    }
    let mut followed = 0;
    for page in &all {
        let directory = root().join(&page.name).parent().unwrap().to_path_buf();
        for part in page.text.split("](").skip(1) {
            let target = part.split(')').next().unwrap();
            if target.starts_with("https://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { root().join(&page.name) } else { directory.join(path) };
            assert!(file.exists(), "{}: {target} is not there", page.name);
            if !anchor.is_empty() {
                let text = fs::read_to_string(&file).unwrap();
                let found = anchors(&Page { name: target.to_owned(), text });
                let has = found.iter().any(|known| known == anchor);
                assert!(has, "{}: {target}: the headings are {found:?}", page.name);
            }
            followed += 1;
        }
    }
    assert!(followed > 40, "only {followed}");
}

/// The rows of all benches with a value, by `bench:row`.
fn results() -> BTreeMap<String, Value> {
    let mut rows = BTreeMap::new();
    for entry in fs::read_dir(root().join("benches/results")).unwrap() {
        let path = entry.unwrap().path();
        let bench = path.file_stem().unwrap().to_str().unwrap();
        let result: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for row in result["rows"].as_array().unwrap().iter().filter(|row| row["value"].is_number())
        {
            rows.insert(format!("{bench}:{}", row["name"].as_str().unwrap()), row.clone());
        }
    }
    assert!(rows.len() > 300, "only {} rows", rows.len());
    rows
}

/// Whether a row misses its bar, and the bar as a table shows it.
fn bar(row: &Value) -> (bool, String) {
    let Some(bar) = row["bar"].as_f64() else { return (false, "–".into()) };
    let (value, at_least) = (row["value"].as_f64().unwrap(), row["at_least"] == true);
    let missed = if at_least { value < bar } else { value > bar };
    let sign = if at_least { "≥" } else { "≤" };
    let word = if missed { ", missed" } else { "" };
    (missed, format!("{sign} {bar}{word}"))
}

/// Whether a cell shows a value, rounded to the number of decimals in the cell.
fn shows(cell: &str, value: f64) -> bool {
    let number = cell.split(' ').next().unwrap().replace(',', "");
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let half = 0.5 / 10_f64.powi(decimals as i32);
    number.parse::<f64>().is_ok_and(|shown| (shown - value).abs() <= half * 1.000_001)
}

/// A figure in a table with a column `row` is that of the bench's row. So is its bar, and the figure says if
/// it misses the bar.
#[test]
fn figures_are_those_of_the_benches() {
    let results = results();
    let mut compared = 0;
    for page in pages() {
        let mut columns = Vec::new();
        for (at, line) in prose(&page) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            if !line.starts_with('|') {
                columns.clear();
            } else if columns.is_empty() {
                columns = cells;
            } else if let Some(column) = columns.iter().position(|column| *column == "row") {
                let of = |name| cells[columns.iter().position(|column| *column == name).unwrap()];
                let name = cells[column].trim_matches('`');
                if name.starts_with("---") {
                    continue;
                }
                let row = results.get(name).unwrap_or_else(|| panic!("{at}: no row {name}"));
                let value = row["value"].as_f64().unwrap();
                assert!(shows(of("figure"), value), "{at}: {name} is {value}");
                let (_, expected) = bar(row);
                assert_eq!(of("bar").replace(',', ""), expected.replace(',', ""), "{at}: {name}");
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "only {compared}");
    let page = fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    for (name, row) in results.iter().filter(|(_, row)| bar(row).0) {
        let value = &row["value"];
        assert!(page.contains(&format!("`{name}`")), "docs/benchmarks.md lacks {name}: {value}");
    }
}

/// The first page stays one page.
#[test]
fn readme_is_short() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(page.lines().count() <= 150, "{} lines", page.lines().count());
}
