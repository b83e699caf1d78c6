//! The system call filter: a balanced tree over call numbers, with a few looks at arguments.
//!
//! Invariants: any architecture but the native one is killed; x32 numbers do not exist; arguments
//! are compared in the width the kernel uses, so no high half slips past. clone3, whose flags a
//! filter cannot see, exists only for who holds the key: pid 1, which drew it at random.

use std::io;
use std::sync::OnceLock;

use crate::Error;
use crate::error::Step;
use crate::seccomp_table::{ALLOWED, DENIED, PRETENDED, entries};

/// What the filter wants in the third and fourth argument of clone3, which the kernel ignores.
/// Never leaves pid 1's memory, which no program inside can read.
#[derive(Clone, Copy)]
pub(crate) struct Clone3Key(pub(crate) u64, pub(crate) u64);

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Allow,
    Errno(i32),
    /// Without flags that make namespaces.
    Clone,
    /// With the key.
    Clone3,
    /// But pushing input into a terminal.
    Ioctl,
    /// But leases and delegations: whoever opens a file under one waits for its holder, also a
    /// program of the host or init, since the host's files that are shown belong to root inside.
    Fcntl,
    /// But for init, whose limits its jail lives by.
    Prlimit,
    /// Unix and internet sockets, and route netlink.
    Socket,
    /// Unix sockets.
    SocketPair,
    /// Asking, not changing.
    Personality,
    /// No devices; the mode is the argument of this number.
    Mknod(u32),
}

const CHECKED: [(&str, u32, Rule); 10] = [
    ("ioctl", 16, Rule::Ioctl),
    ("socket", 41, Rule::Socket),
    ("socketpair", 53, Rule::SocketPair),
    ("clone", 56, Rule::Clone),
    ("fcntl", 72, Rule::Fcntl),
    ("mknod", 133, Rule::Mknod(1)),
    ("personality", 135, Rule::Personality),
    ("mknodat", 259, Rule::Mknod(2)),
    ("prlimit64", 302, Rule::Prlimit),
    ("clone3", 435, Rule::Clone3),
];

const UNKNOWN: Rule = Rule::Errno(libc::ENOSYS);
/// Numbers from here up are x32's.
const X32: u32 = 0x4000_0000;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// fcntl(2)'s lease on a directory, which libc does not name yet.
const F_SETDELEG: u32 = 1024 + 16;

/// Every named call with its rule, by number.
fn table() -> Vec<(u32, &'static str, Rule)> {
    let mut table: Vec<_> =
        entries(ALLOWED)
            .map(|(name, number)| (number, name, Rule::Allow))
            .chain(entries(PRETENDED).map(|(name, number)| (number, name, Rule::Errno(0))))
            .chain(DENIED.into_iter().flat_map(|list| {
                entries(list).map(|(name, number)| (number, name, Rule::Errno(libc::EPERM)))
            }))
            .chain(CHECKED.map(|(name, number, rule)| (number, name, rule)))
            .collect();
    table.sort_unstable_by_key(|(number, ..)| *number);
    table
}

/// Stable bytes that describe the profile, one line for each call; hash them for provenance.
pub fn seccomp_digest_source() -> Vec<u8> {
    let mut text =
        String::from("jail seccomp profile 1\narch x86_64, others kill\nunnamed ENOSYS\nx32 ENOSYS\n");
    for (number, name, rule) in table() {
        text.push_str(&format!("{number} {name} {rule:?}\n"));
    }
    text.into_bytes()
}

/// First numbers of runs of equal rules, covering everything from 0 up.
fn runs() -> &'static [(u32, Rule)] {
    static RUNS: OnceLock<Vec<(u32, Rule)>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let mut runs: Vec<(u32, Rule)> = Vec::new();
        let mut next = 0;
        let mut push = |number, rule| {
            if runs.last().is_none_or(|(_, last)| *last != rule) {
                runs.push((number, rule));
            }
        };
        for (number, _, rule) in table() {
            if number > next {
                push(next, UNKNOWN);
            }
            push(number, rule);
            next = number + 1;
        }
        push(next, UNKNOWN);
        runs
    })
}

/// Builds the table before there are jails, so that they share it.
pub(crate) fn prepare() {
    runs();
}

/// Installs the filter on this process and returns the key it drew.
pub(crate) fn install() -> Result<Clone3Key, Error> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .step(|| "draw a key".into())?;
    let (left, right) = random.split_at(8);
    let half = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("half of 16 bytes"));
    let key = Clone3Key(half(left), half(right));
    let program = program(key);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from a live vector.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if answer == 0 {
        Ok(key)
    } else {
        Err(Error::kernel("install the system call filter", io::Error::last_os_error()))
    }
}

/// Offset of `struct seccomp_data` fields.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

fn program(key: Clone3Key) -> Vec<libc::sock_filter> {
    let mut code = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0),
        ret(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        jump(libc::BPF_JGE, X32, 0, 1),
        errno(libc::ENOSYS),
    ];
    code.extend(tree(runs(), key));
    code
}

/// A search tree whose leaves are runs; the accumulator holds the number.
fn tree(runs: &[(u32, Rule)], key: Clone3Key) -> Vec<libc::sock_filter> {
    if let [(_, rule)] = runs {
        return leaf(*rule, key);
    }
    let (left, right) = runs.split_at(runs.len() / 2);
    let (below, above) = (tree(left, key), tree(right, key));
    let mut code = match u8::try_from(below.len()) {
        Ok(skip) => vec![jump(libc::BPF_JGE, right[0].0, skip, 0)],
        Err(_) => vec![jump(libc::BPF_JGE, right[0].0, 0, 1), always(below.len() as u32)],
    };
    code.extend(below);
    code.extend(above);
    code
}

fn leaf(rule: Rule, key: Clone3Key) -> Vec<libc::sock_filter> {
    const NAMESPACES: u32 = (libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET) as u32;
    let allow = ret(libc::SECCOMP_RET_ALLOW);
    let refuse = errno(libc::EPERM);
    let family = errno(libc::EAFNOSUPPORT);
    match rule {
        Rule::Allow => vec![allow],
        Rule::Errno(number) => vec![errno(number)],
        Rule::Clone => {
            vec![load(low(0)), jump(libc::BPF_JSET, NAMESPACES, 0, 1), refuse, allow]
        }
        Rule::Clone3 => vec![
            load(low(2)),
            jump(libc::BPF_JEQ, key.0 as u32, 0, 7),
            load(low(2) + 4),
            jump(libc::BPF_JEQ, (key.0 >> 32) as u32, 0, 5),
            load(low(3)),
            jump(libc::BPF_JEQ, key.1 as u32, 0, 3),
            load(low(3) + 4),
            jump(libc::BPF_JEQ, (key.1 >> 32) as u32, 0, 1),
            allow,
            errno(libc::ENOSYS),
        ],
        Rule::Ioctl => vec![
            load(low(1)),
            jump(libc::BPF_JEQ, libc::TIOCSTI as u32, 1, 0),
            jump(libc::BPF_JEQ, libc::TIOCLINUX as u32, 0, 1),
            refuse,
            allow,
        ],
        Rule::Fcntl => vec![
            load(low(1)),
            jump(libc::BPF_JEQ, libc::F_SETLEASE as u32, 1, 0),
            jump(libc::BPF_JEQ, F_SETDELEG, 0, 1),
            refuse,
            allow,
        ],
        Rule::Prlimit => vec![load(low(0)), jump(libc::BPF_JEQ, 1, 0, 1), refuse, allow],
        Rule::Socket => vec![
            load(low(0)),
            jump(libc::BPF_JEQ, libc::AF_UNIX as u32, 5, 0),
            jump(libc::BPF_JEQ, libc::AF_INET as u32, 4, 0),
            jump(libc::BPF_JEQ, libc::AF_INET6 as u32, 3, 0),
            jump(libc::BPF_JEQ, libc::AF_NETLINK as u32, 0, 3),
            load(low(2)),
            jump(libc::BPF_JEQ, libc::NETLINK_ROUTE as u32, 0, 1),
            allow,
            family,
        ],
        Rule::SocketPair => {
            vec![load(low(0)), jump(libc::BPF_JEQ, libc::AF_UNIX as u32, 0, 1), allow, family]
        }
        Rule::Personality => {
            vec![load(low(0)), jump(libc::BPF_JEQ, u32::MAX, 0, 1), allow, refuse]
        }
        Rule::Mknod(argument) => vec![
            load(low(argument)),
            statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, libc::S_IFMT),
            jump(libc::BPF_JEQ, libc::S_IFCHR, 1, 0),
            jump(libc::BPF_JEQ, libc::S_IFBLK, 0, 1),
            refuse,
            allow,
        ],
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn ret(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn errno(number: i32) -> libc::sock_filter {
    ret(libc::SECCOMP_RET_ERRNO | number as u32)
}

fn always(skip: u32) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JA, skip)
}

fn jump(test: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Clone3Key = Clone3Key(0x1111_2222_3333_4444, 0x5555_6666_7777_8888);

    /// Runs a program as the kernel does; returns the verdict and the steps it took.
    fn run(program: &[libc::sock_filter], arch: u32, number: u32, args: [u64; 6]) -> (u32, u32) {
        let word = |offset: u32| match offset {
            NUMBER => number,
            ARCH => arch,
            _ => {
                let index = offset - 16;
                (args[(index / 8) as usize] >> (if index % 8 == 4 { 32 } else { 0 })) as u32
            }
        };
        let (mut at, mut value, mut steps) = (0, 0, 0);
        loop {
            let step = program[at];
            at += 1;
            steps += 1;
            let code = u32::from(step.code);
            let test = |yes: bool| usize::from(if yes { step.jt } else { step.jf });
            match code & 7 {
                libc::BPF_LD => value = word(step.k),
                libc::BPF_ALU => value &= step.k,
                libc::BPF_RET => return (step.k, steps),
                _ => {
                    at += match code & 0xf0 {
                        libc::BPF_JA => step.k as usize,
                        libc::BPF_JEQ => test(value == step.k),
                        libc::BPF_JGE => test(value >= step.k),
                        libc::BPF_JSET => test(value & step.k != 0),
                        other => panic!("jump {other:x}"),
                    }
                }
            }
        }
    }

    fn verdict(number: u32, args: [u64; 6]) -> u32 {
        run(&program(KEY), AUDIT_ARCH_X86_64, number, args).0
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const fn says(number: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | number as u32
    }

    #[test]
    fn the_table_names_each_number_once() {
        let table = table();
        for pair in table.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{pair:?}");
        }
        assert_eq!(table.len(), 361);
    }

    #[test]
    fn the_tree_says_what_the_table_says_and_stays_shallow() {
        let table = table();
        let program = program(KEY);
        assert!(program.len() < 1000, "{}", program.len());
        for number in (0..1000).chain([X32 - 1, X32, X32 + 59, u32::MAX]) {
            let found = table.binary_search_by_key(&number, |(number, ..)| *number);
            let rule = found.map_or(UNKNOWN, |index| table[index].2);
            let (verdict, steps) = run(&program, AUDIT_ARCH_X86_64, number, [0; 6]);
            match rule {
                Rule::Allow => assert_eq!(verdict, ALLOW, "{number}"),
                Rule::Errno(errno) => assert_eq!(verdict, says(errno), "{number}"),
                Rule::Clone | Rule::Clone3 | Rule::Ioctl | Rule::Fcntl | Rule::Prlimit | Rule::Socket => {}
                Rule::SocketPair | Rule::Personality | Rule::Mknod(_) => {}
            }
            assert!(steps <= 32, "{number} takes {steps} steps");
            let foreign = run(&program, 0x4000_0003, number, [0; 6]).0;
            assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS, "{number}");
        }
    }

    #[test]
    fn arguments_are_compared_in_the_kernels_width() {
        let high = 1u64 << 32;
        for command in [libc::TIOCSTI, libc::TIOCLINUX] {
            for command in [command, command + high, command | u64::MAX << 32] {
                assert_eq!(verdict(16, [0, command, 0, 0, 0, 0]), says(libc::EPERM));
            }
        }
        assert_eq!(verdict(16, [0, libc::TCGETS, 0, 0, 0, 0]), ALLOW);
        for command in [libc::F_SETLEASE as u64, F_SETDELEG.into()] {
            assert_eq!(verdict(72, [3, command, 1, 0, 0, 0]), says(libc::EPERM));
            assert_eq!(verdict(72, [3, command + high, 1, 0, 0, 0]), says(libc::EPERM));
        }
        assert_eq!(verdict(72, [3, libc::F_SETFL as u64, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(302, [1 + high, 7, 0, 0, 0, 0]), says(libc::EPERM));
        assert_eq!(verdict(302, [0, 7, 0, 0, 0, 0]), ALLOW);
        let user = libc::CLONE_NEWUSER as u64;
        for flags in [user, user + high, user | 17, libc::CLONE_NEWNS as u64] {
            assert_eq!(verdict(56, [flags, 0, 0, 0, 0, 0]), says(libc::EPERM));
        }
        assert_eq!(verdict(56, [libc::CLONE_VM as u64 | 17, 0, 0, 0, 0, 0]), ALLOW);
        for (number, at) in [(133, 1), (259, 2)] {
            let mut args = [0; 6];
            for (mode, expected) in [
                (libc::S_IFCHR | 0o666, says(libc::EPERM)),
                (libc::S_IFBLK, says(libc::EPERM)),
                (libc::S_IFIFO | 0o600, ALLOW),
                (0o644, ALLOW),
            ] {
                args[at] = u64::from(mode);
                assert_eq!(verdict(number, args), expected, "{number} {mode:o}");
            }
        }
        assert_eq!(verdict(135, [u32::MAX.into(), 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(135, [0x40000, 0, 0, 0, 0, 0]), says(libc::EPERM));
    }

    #[test]
    fn sockets_are_unix_internet_and_route_netlink() {
        let socket = |family: i32, protocol: i32| verdict(41, [family as u64, 0, protocol as u64, 0, 0, 0]);
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, 0), ALLOW);
        }
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_ROUTE), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_AUDIT), says(libc::EAFNOSUPPORT));
        for family in [libc::AF_ALG, libc::AF_VSOCK, libc::AF_PACKET] {
            assert_eq!(socket(family, 0), says(libc::EAFNOSUPPORT));
        }
        assert_eq!(verdict(53, [libc::AF_UNIX as u64, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(verdict(53, [libc::AF_INET as u64, 0, 0, 0, 0, 0]), says(libc::EAFNOSUPPORT));
    }

    #[test]
    fn clone3_wants_the_whole_key() {
        assert_eq!(verdict(435, [0, 88, KEY.0, KEY.1, 0, 0]), ALLOW);
        for bit in 0..64 {
            let flip = 1u64 << bit;
            for args in [[0, 88, KEY.0 ^ flip, KEY.1, 0, 0], [0, 88, KEY.0, KEY.1 ^ flip, 0, 0]] {
                assert_eq!(verdict(435, args), says(libc::ENOSYS), "bit {bit}");
            }
        }
    }
}
