//! How many replicas the data has, and how many the roles of users.
//!
//! A server asks the keyspace `system_auth` who may read what, for each request or every few seconds. That keyspace has one
//! replica unless somebody has changed that. If its node is away, all other nodes refuse all requests, also those for rows
//! that they have. So it should have as many replicas as the data.

use std::collections::HashMap;

/// The keyspace that has the users and their rights.
pub(super) const ROLES: &str = "system_auth";

/// The numbers of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) data: u64,
    pub(super) roles: u64,
}

impl Replicas {
    /// What to change; `None` if the roles have enough.
    pub(super) fn advice(self) -> Option<String> {
        let Replicas { data, roles } = self;
        (0 < roles && roles < data).then(|| {
            format!(
                "the data has {data} replicas, but the keyspace {ROLES} has {roles}: if their nodes \
                 are away, all requests are refused. Have an administrator change that: ALTER \
                 KEYSPACE {ROLES} WITH replication = {{...}} with {data} replicas, then `nodetool \
                 repair {ROLES}` on each node"
            )
        })
    }
}

/// How many replicas a keyspace has in all datacenters, by its options of replication. They are such as
/// `{'class': 'NetworkTopologyStrategy', 'dc1': '2'}`.
pub(super) fn count(options: &HashMap<String, String>) -> u64 {
    let numbers = options.iter().filter(|(name, _)| *name != "class");
    // `3/1` is three replicas, one of which is transient.
    let number = |text: &str| text.split('/').next().and_then(|all| all.parse::<u64>().ok());
    numbers.filter_map(|(_, text)| number(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn replicas_of_all_datacenters_count() {
        let simple = options(&[("class", "SimpleStrategy"), ("replication_factor", "3")]);
        assert_eq!(count(&simple), 3);
        let several =
            options(&[("class", "NetworkTopologyStrategy"), ("a", "2"), ("b", "3/1"), ("c", "x")]);
        assert_eq!(count(&several), 5);
        assert_eq!(count(&options(&[("class", "LocalStrategy")])), 0);
    }

    #[test]
    fn roles_need_as_many_replicas_as_the_data() {
        let advice = |data, roles| Replicas { data, roles }.advice();
        let advised = advice(3, 1).unwrap();
        assert!(advised.contains("the data has 3 replicas") && advised.contains("ALTER KEYSPACE"));
        assert!(advice(3, 2).unwrap().contains("system_auth has 2"));
        // Without roles of its own, a server tells none.
        for (data, roles) in [(1, 1), (3, 3), (1, 3), (2, 0)] {
            assert_eq!(advice(data, roles), None);
        }
    }
}
