//! No text, however odd, makes the room panic.

use proptest::prelude::*;

use super::*;

/// Text that is nearly a configuration, so that it reaches more than the parser.
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
        "rehearsal",
        "rehearsal.a.size=",
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
                    let _ = resolve(&config, &HOST);
                }
            }
        }
    }
}
