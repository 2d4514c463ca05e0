//! The example that ends the help of each verb.

use clap::Command;

const EXAMPLES: [(&str, &str); 36] = [
    ("mount", "belady mount /lustre/imagenet /mnt/imagenet --cache-dir /local/belady"),
    ("umount", "belady umount /mnt/imagenet"),
    ("run", "belady run /lustre/imagenet -- python3 train.py /lustre/imagenet"),
    ("status", "belady status /mnt/imagenet"),
    ("top", "belady top /mnt/imagenet"),
    ("trace", "belady trace /mnt/imagenet --seconds 10 -o trace.json"),
    ("report", "belady report /mnt/imagenet --epochs 1"),
    ("warmup", "belady warmup /mnt/imagenet --glob 'train/**/*.JPEG' --deadline 10m"),
    ("order show", "belady order show torch-random:seed=42 /lustre/imagenet --epochs 2"),
    ("order check", "belady order check torch-random:seed=42 /lustre/imagenet"),
    ("order record", "belady order record /mnt/imagenet -o order.txt"),
    ("order merge", "belady order merge --by epochs first.txt second.txt -o order.txt"),
    ("order cut", "belady order cut order.txt --epochs 0..2 -o first.txt"),
    ("order set", "belady order set /mnt/imagenet torch-random:seed=42"),
    ("order status", "belady order status /mnt/imagenet"),
    ("order withdraw", "belady order withdraw /mnt/imagenet"),
    ("config show", "belady config show --config belady.toml --ram 4GiB"),
    ("config check", "belady config check belady.toml"),
    ("cache ls", "belady cache ls /local/belady"),
    ("cache verify", "belady cache verify /local/belady"),
    ("cache gc", "belady cache gc /local/belady"),
    ("cache rm", "belady cache rm /local/belady --all"),
    ("catalog export", "belady catalog export /lustre/imagenet imagenet.catalog"),
    (
        "catalog import",
        "belady catalog import --cache-dir /local/belady imagenet.catalog /lustre/imagenet",
    ),
    ("rehearse stats", "belady rehearse stats /mnt/imagenet"),
    ("rehearse ls", "belady rehearse ls /mnt/imagenet old"),
    ("rehearse show", "belady rehearse show /mnt/imagenet old train/n01440764/1.JPEG"),
    ("rehearse export", "belady rehearse export /mnt/imagenet old exported"),
    ("rehearse offer", "belady rehearse offer /mnt/imagenet old list.txt"),
    ("rehearse draw", "belady rehearse draw /mnt/imagenet old"),
    ("rehearse task", "belady rehearse task /mnt/imagenet old 1 tasks/1.txt"),
    ("rehearse score", "belady rehearse score /mnt/imagenet old losses.txt"),
    ("rehearse sleep", "belady rehearse sleep /mnt/imagenet old --budget 5000"),
    ("cluster ls", "belady cluster ls /mnt/imagenet"),
    ("doctor", "belady doctor --source /lustre/imagenet --cache-dir /local/belady"),
    ("simulate", "belady simulate --jobs 3 --cache 20%,50%"),
];

pub(super) fn add(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (verb, example)| add_one(command, verb, example))
}

fn add_one(command: Command, verb: &str, example: &str) -> Command {
    match verb.split_once(' ') {
        Some((first, rest)) => command.mut_subcommand(first, |verb| add_one(verb, rest, example)),
        None => command.mut_subcommand(verb, |verb| {
            let help = format!("Example:\n  {example}");
            let long = verb.get_after_long_help().map(|long| format!("{long}\n\n{help}"));
            let verb = verb.after_help(help);
            match long {
                Some(long) => verb.after_long_help(long),
                None => verb,
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_example_is_a_command_line_of_its_verb() {
        for (verb, example) in EXAMPLES {
            let words = example.split(' ').map(|word| word.trim_matches('\''));
            let parsed = Cli::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{verb}: {}", parsed.unwrap_err());
            assert!(example.starts_with(&format!("belady {verb} ")), "{example} is of {verb}");
        }
    }

    #[test]
    fn each_verb_that_stands_alone_ends_with_an_example() {
        let command = add(Cli::command());
        let alone = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        for verb in alone.filter(|verb| !verb.has_subcommands()) {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example:"), "{}", verb.get_name());
        }
    }
}
