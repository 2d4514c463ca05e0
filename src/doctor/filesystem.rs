//! Filesystems by the magic number of statfs(2).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub name: &'static str,
    /// Whether its bytes come over a network. None if that is not known.
    pub network: Option<bool>,
}

const NETWORK: [(u32, &str); 14] = [
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x00c3_6400, "ceph"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
    (0x0000_6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0000_517b, "smb"),
    (0x5346_414f, "afs"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
];

const LOCAL: [(u32, &str); 8] = [
    (0x0000_ef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x7371_7368, "squashfs"),
];

impl Filesystem {
    pub fn of_magic(magic: u32) -> Self {
        let find = |table: &[(u32, &'static str)]| {
            table.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
        };
        match (find(&NETWORK), find(&LOCAL), magic) {
            (Some(name), _, _) => Filesystem { name, network: Some(true) },
            (_, Some(name), _) => Filesystem { name, network: Some(false) },
            // Any filesystem may be below these two.
            (_, _, 0x6573_5546) => Filesystem { name: "fuse", network: None },
            (_, _, 0x794c_7630) => Filesystem { name: "overlay", network: None },
            _ => Filesystem { name: "a filesystem of unknown kind", network: None },
        }
    }
}
