//! What this program does inside a jail: tries what must fail and prints the kernel's answers.
//!
//! The calls themselves are the point, so no library stands between.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

/// Runs the probe named first and ends.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ! {
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    match name.as_str() {
        "calls" => calls(&rest),
        "int80" => int80(),
        "terminal" => terminal(),
        "abstract" => println!("{:?}", abstract_socket(&rest[0])),
        "shm" => println!("{}", shared_memory()),
        "eat" => eat(rest[0].parse().unwrap()),
        "fork" => fork(rest[0].parse().unwrap()),
        "raise" => raise_limits(),
        "take" => take(&rest[0], rest[1].parse().unwrap()),
        "lease" => lease(&rest[0]),
        "self" => reopen_self(),
        "landlock" => landlock_layers(),
        other => panic!("no probe {other}"),
    }
    std::process::exit(0);
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Each argument is `number[,argument...]`; prints `number=errno` or `number=ok`.
fn calls(list: &[String]) {
    for call in list {
        let mut words = call.split(',').map(|word| word.parse::<u64>().unwrap());
        let number = words.next().unwrap();
        let args: Vec<u64> = words.chain([0; 6]).take(6).collect();
        // SAFETY: only calls that the filter refuses are asked for; pointers are null.
        let answer =
            unsafe { libc::syscall(number as i64, args[0], args[1], args[2], args[3], args[4], args[5]) };
        if answer == -1 { println!("{call}={}", errno()) } else { println!("{call}=ok") }
    }
}

/// getpid by the 32-bit gate; the filter kills it.
fn int80() {
    // SAFETY: getpid of the 32-bit table has no effect on memory.
    unsafe { std::arch::asm!("int 0x80", inlateout("eax") 20 => _) };
    println!("survived");
}

fn terminal() {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx").unwrap();
    for command in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSTI + (1 << 32)] {
        let byte = b'x';
        // SAFETY: the argument is a live byte; the raw call keeps all 64 bits of the command.
        let answer = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), command, &raw const byte) };
        println!("{}", if answer == -1 { errno() } else { 0 });
    }
    // A terminal of the jail's own still works.
    let mut number = 0;
    // SAFETY: TIOCGPTN stores one number.
    println!("{}", unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGPTN, &raw mut number) });
}

fn abstract_socket(name: &str) -> Result<(), i32> {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    UnixStream::connect_addr(&address).map(drop).map_err(|error| error.raw_os_error().unwrap())
}

/// Makes a segment of a well-known key; says whether it was there before.
fn shared_memory() -> String {
    // SAFETY: shmget takes numbers.
    let id = unsafe { libc::shmget(0x6a61, 4096, libc::IPC_CREAT | libc::IPC_EXCL | 0o666) };
    if id < 0 { format!("errno {}", errno()) } else { "new".into() }
}

fn eat(mebibytes: usize) {
    let mut all = Vec::new();
    for _ in 0..mebibytes {
        all.push(vec![1u8; 1 << 20]);
    }
    println!("ate {}", std::hint::black_box(&all).len());
}

/// Forks sleeping children until it cannot; prints how many and the reason.
fn fork(most: usize) {
    for count in 0..most {
        // SAFETY: the child only sleeps and ends.
        match unsafe { libc::fork() } {
            -1 => return println!("{count} {}", errno()),
            0 => {
                std::thread::sleep(std::time::Duration::from_secs(60));
                std::process::exit(0);
            }
            _ => {}
        }
    }
    println!("{most} 0");
}

/// Takes up to `most` of something that the kernel bounds for each user, prints how many it got, and
/// keeps them until its input ends.
fn take(what: &str, most: usize) {
    let one = || match what {
        // SAFETY: takes a number, gives a descriptor that is kept.
        "inotify" => unsafe { libc::inotify_init1(0) as i64 },
        "terminals" => {
            use std::os::fd::IntoRawFd;
            std::fs::File::open("/dev/ptmx").map_or(-1, |file| file.into_raw_fd().into())
        }
        _ => {
            let mut timer: libc::timer_t = std::ptr::null_mut();
            // SAFETY: without an event structure the default signal is used; the id is stored.
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, std::ptr::null_mut(), &raw mut timer).into() }
        }
    };
    let got = (0..most).take_while(|_| one() >= 0).count();
    println!("{got}");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Asks for a lease of a file.
fn lease(path: &str) {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: the call takes numbers.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    println!("{}", if answer == -1 { errno() } else { 0 });
}

/// Tries to raise each limit above its hard value.
fn raise_limits() {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE, libc::RLIMIT_CORE] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is a live structure in both calls.
        let answer = unsafe {
            libc::getrlimit(resource, &raw mut limit);
            println!("{} {}", limit.rlim_cur, limit.rlim_max);
            limit.rlim_max += 1;
            libc::setrlimit(resource, &raw const limit)
        };
        println!("{}", if answer == -1 { errno() } else { 0 });
    }
}

/// Looks for a way to init's own program.
fn reopen_self() {
    for path in ["/proc/1/exe", "/proc/1/mem", "/proc/1/root", "/proc/1/fd/0", "/proc/1/environ"] {
        let opened = std::fs::OpenOptions::new().read(true).open(path);
        println!("{path} {:?}", opened.map(drop).map_err(|error| error.kind()));
    }
}

/// Tries to write the running program.
pub(crate) fn rewrite() -> ! {
    println!("{:?}", std::fs::OpenOptions::new().write(true).open("/proc/self/exe").map(drop));
    std::process::exit(0);
}

/// Counts the Landlock rulesets that can still be stacked on this process.
fn landlock_layers() {
    // SAFETY: the attribute is a live structure of 8 bytes that handles one right; descriptors are numbers.
    unsafe {
        let handled: u64 = 1;
        let ruleset = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8, 0);
        if ruleset < 0 {
            return println!("no landlock {}", errno());
        }
        let mut count = 0;
        while libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) == 0 {
            count += 1;
        }
        println!("{count} {}", errno());
    }
}
