//! The JSON of commands, for scripts.

use super::*;

/// The JSON that a command prints. The command must end with this exit code.
#[track_caller]
fn json(fixture: &Fixture, verb: &str, rest: &[&str], input: &str, code: i32) -> Value {
    let (found, text) = rehearse(fixture, verb, &[rest, &["--json"]].concat(), input);
    assert_eq!(found, Some(code), "{text}");
    let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    values.next().unwrap().unwrap()
}

#[test]
fn every_command_has_its_answer_in_json() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.offer-rate=0"]);
    let list: String = (0..FILES).map(|n| format!("train/a/{n}.jpg\n")).collect();
    let offered = json(&fixture, "offer", &["old"], &(list + "train/x\n"), 2);
    assert_eq!((&offered["offered"], &offered["refused"]), (&FILES.into(), &1.into()));
    assert_eq!(offered["why"][0], "train/x: is not a file of the dataset");
    wait_for_offers(&fixture, FILES);
    let drawn = json(&fixture, "draw", &["old", "--count", "7"], "", 0);
    let paths: Vec<&str> = drawn.as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert_eq!(paths.len(), 7);
    let lines = format!("{} 1\ntrain/b/1.jpg 2\n", paths[0]);
    let scored = json(&fixture, "score", &["old"], &lines, 0);
    let counts = ["taken", "passed", "refused"].map(|key| scored[key].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0]);
    let begun = json(&fixture, "task", &["old", "4", "-"], "train/a\ntrain/b/1.jpg\n", 0);
    assert_eq!((&begun["task"], &begun["listed"]), (&4.into(), &2.into()));
    let copies = fixture.path("copies");
    let copied = json(&fixture, "export", &["old", copies.to_str().unwrap()], "", 0);
    assert_eq!((&copied["copied"], &copied["refused"]), (&30.into(), &0.into()));
    let missed = &stats(&fixture)["missed"];
    assert_eq!((&missed["reads"], &missed["openings"]), (&0.into(), &0.into()));
    mounted.umount();
}
