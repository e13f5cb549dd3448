//! The error set: one stable number each, on the wire, in Rust and in C, with its remedy. Must
//! never reuse a number or change its meaning.

use crate::resource::{NO_CAP, Resource, Scope, Unit};
use crate::table::{wire_enum, with_wire_form};
use zerocopy::little_endian::{U16, U32, U64};

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $field:literal, $remedy:literal;)*) => {
        /// Why a request, or one item of it, was not done. The numbers are the wire's and the C
        /// ABI's.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[$doc])* $name = $number,)* }

        impl ErrorCode {
            /// Every code, in the order of its number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code of a number on the wire; `None` for 0 (OK) and for unknown numbers.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The name in the field's style, such as `NO_QUOTA`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $field,)* }
            }

            /// Cause and remedy, one sentence each.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }
    };
}

error_codes! {
    /// No broker at the socket path, or the connection is lost.
    NotConnected = 1, "NOT_CONNECTED", "no broker answers at the socket; start fdbrokerd or `fdbroker run`, or check FDBROKER_SOCKET";
    /// The handle was made on another node or before a reboot.
    WrongNode = 2, "WRONG_NODE", "the handle names memory of another node (or of this one before a reboot); handles are good on their own node only";
    /// Magic, version, length or MAC of the handle is wrong.
    BadHandle = 3, "BAD_HANDLE", "these bytes are not a handle of this broker; pass all 64 bytes unchanged, from a process of the same broker";
    /// The allocation has ended.
    Stale = 4, "STALE", "the allocation was released or its address reused; get a new handle from its owner";
    /// Not of this client's domain, or not its own to change.
    NotPermitted = 5, "NOT_PERMITTED", "the allocation belongs to another user or another client; its owner may register it with a wider `share`";
    /// A cap is full; the status names the cap, its value and the largest holder.
    NoQuota = 6, "NO_QUOTA", "a cap is full; release leases or registrations, or raise the cap named";
    /// Not ready yet; ask again for this item.
    Again = 7, "AGAIN", "not ready yet; ask again for this item";
    /// The deadline passed in the library.
    TimedOut = 8, "TIMED_OUT", "the deadline passed; allow more time, or look for who holds the fds with `fdbroker ls`";
    /// The caller cancelled the request.
    Cancelled = 9, "CANCELLED", "the caller cancelled the request";
    /// The owner's process has ended.
    OwnerGone = 10, "OWNER_GONE", "the process that owned the allocation has ended; get a new handle from a live owner";
    /// The owner did not answer a recall, or could not export again (value = its error code).
    OwnerSilent = 11, "OWNER_SILENT", "the owner did not give the fd again when recalled; check that it runs and serves its recall callback";
    /// The caller's own fd table is full, or a security module keeps the fd from it. Nothing is
    /// lost: retry.
    LocalFdLimit = 12, "LOCAL_FD_LIMIT", "this process has no free fd: close some or raise RLIMIT_NOFILE; or a security module keeps this fd from it (SELinux: `avc: denied` in the kernel's log); then retry: nothing is lost";
    /// The fd deposited is of a type that cannot be shared; value = `FdType`.
    UnsupportedFd = 13, "UNSUPPORTED_FD", "this fd cannot be shared; deposit a dma-buf, a CUDA VMM fd, or a memfd with F_SEAL_SHRINK and F_SEAL_SEAL, with its true size";
    /// The backend or feature is absent here.
    NotSupported = 14, "NOT_SUPPORTED", "this backend or feature is absent here; see the message for what is missing";
    /// The peer broke the protocol, or speaks another version.
    Protocol = 15, "PROTOCOL", "the peer broke the protocol or speaks another version; use a library and a broker of the same release";
    /// The broker is going away, or is being drained and takes nothing new.
    ShuttingDown = 16, "SHUTTING_DOWN", "the broker is going away, and the library reconnects when it is back; or it is being drained (`fdbroker drain`) and takes nothing new: try again when that is undone";
    /// A bug or an exhausted resource of the broker itself.
    Internal = 17, "INTERNAL", "a fault in the broker; see its log";
    /// Another object has the name, or is to have it; value = index of the object.
    Exists = 18, "EXISTS", "an object has this name, or is being made under it; delete it, or create with REPLACE";
    /// No object has the name; value = index of the name.
    NotFound = 19, "NOT_FOUND", "no object has this name in this domain or job; create it, or wait for it with a deadline";
    /// The object is being made; pid = its maker, value = index of the name.
    NotSealed = 20, "NOT_SEALED", "the object is being made; wait for it with a deadline";
    /// The group is sealed, and cannot be changed.
    Sealed = 21, "SEALED", "the group is sealed and cannot be changed; create another one with REPLACE";
    /// The memory is still mapped for writing, or used by a device.
    SealedBusy = 22, "SEALED_BUSY", "the memory cannot be sealed: it is still mapped, in this process or a child of it, used by a device, or has a lease (F_SETLEASE); unmap it, give up the lease, then seal again";
    /// The group is not in the making any more.
    Aborted = 23, "ABORTED", "no such group of this client is in the making: it was aborted, or the broker has ended it; create it again";
    /// The name has another version; value = that one, 0 = none.
    Version = 24, "VERSION", "the name has another version than was expected; look at it again";
    /// Too many objects, or too much for one answer; value = the most.
    TooLong = 25, "TOO_LONG", "a name has at most 255 bytes, metadata 4096, a group 253 objects, an answer 32 KiB; ask for less at a time";
    /// The broker was killed, and the memory could not be had again.
    Lost = 26, "LOST", "the broker that held the memory was killed, and its owner could not give it to the next one in time; get a new handle from its owner, which lives on";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name(), self.remedy())
    }
}

wire_enum! {
    /// What the kernel says a deposited fd is; the `value` of an `UNSUPPORTED_FD` status.
    FdType: u8 {
        /// Not recognised.
        Unknown = 0, "unknown";
        /// A dma-buf, which its fdinfo proves.
        DmaBuf = 1, "dma-buf";
        /// An fd of /dev/nvidiactl.
        CudaVmm = 2, "cuda-vmm";
        /// A memfd with both seals.
        Memfd = 3, "memfd";
        /// A memfd that lacks F_SEAL_SHRINK or F_SEAL_SEAL.
        UnsealedMemfd = 4, "memfd without F_SEAL_SHRINK and F_SEAL_SEAL";
        /// A socket of any family.
        Socket = 5, "socket";
        /// A pipe or FIFO.
        Pipe = 6, "pipe";
        /// An epoll, eventfd, timerfd or other anonymous inode.
        Anonymous = 7, "anonymous inode (epoll, eventfd, ...)";
        /// A directory, of whatever file system.
        Directory = 8, "directory";
        /// A regular file that is no memfd.
        File = 9, "file";
        /// A device other than /dev/nvidiactl.
        Device = 10, "device";
        /// Right type, but size or offset exceed what the fd holds.
        TooSmall = 11, "fd smaller than the size and offset claimed";
        /// The fd's type is not the memory kind claimed.
        KindMismatch = 12, "fd of another type than the memory kind claimed";
        /// A memfd without F_SEAL_GROW, deposited for more than its uid.
        GrowableMemfd = 13, "memfd without F_SEAL_GROW, shared beyond its uid";
        /// A memfd for objects that has F_SEAL_SEAL, but not all that a seal of its group needs.
        FinalMemfd = 14, "memfd that can be sealed no further (F_SEAL_SEAL)";
        /// Another memfd than the one that the handle has named from the beginning.
        OtherMemory = 15, "memfd other than the one that the handle names; unregister it, and register the new memory";
    }
}

/// In the scope of a `NO_QUOTA`: nobody has set this cap of the domain; it is the user's share of
/// the node's cap.
const SHARE: u8 = 0x80;
/// The same: a process of another user holds most of it; only administrators are told which.
const OF_ANOTHER_USER: u8 = 0x40;
/// The same: what belongs to no process holds most of it, as named objects and kept memory do.
const OF_NO_PROCESS: u8 = 0x20;
/// The same: what counts there was not asked for, but inherited from the version that is replaced.
const INHERITED: u8 = 0x10;
/// The same: nothing of it is in use, so the request alone is more than the cap.
const OF_REQUEST: u8 = 0x08;
/// What is left of it names the scope.
const SCOPE: u8 = 0x07;

/// Most of what `value` of a `NO_QUOTA` of `fds` can say: of the cap, declared fds, clients.
const FDS_CAP: u64 = (1 << 28) - 1;
const DECLARED: u64 = (1 << 20) - 1;
const CLIENTS: u64 = (1 << 16) - 1;
const _: () =
    assert!(FDS_CAP.count_ones() + DECLARED.count_ones() + CLIENTS.count_ones() == u64::BITS);

/// What is said of a cap that an inherited pin meets. Read behind the cap's remedy, which ends with
/// "raise the cap"; it names the way out of each interface, as the library does not know which one
/// the reader uses.
const INHERITED_PIN: &str = "; its name was pinned before, and its new version inherits the pin: \
    make it without (Python: pin=False; C: FDBROKER_OBJECT_NO_PIN; command: --no-pin); \
    until the exchange the old version counts, too";
/// The same of one that meets what is kept. Not with the command's option: what `fdbroker put`
/// makes is kept because it asks for that, so it never inherits this charge.
const INHERITED_KEEP: &str = "; its name was kept or pinned before, and its new version inherits that: \
    make it without (Python: keep=False, pin=False; C: FDBROKER_OBJECT_NO_KEEP, FDBROKER_OBJECT_NO_PIN); \
    until the exchange the old version counts, too";

with_wire_form! {
    /// The outcome of a request or of one item, 16 bytes on the wire. `code` 0 = OK.
    ///
    /// For `NO_QUOTA`: `resource` and `scope` name the cap, `value` is the cap ([`NO_CAP`]: a sum
    /// beyond all numbers; of `fds` with what fills it, see [`Status::declared`]), `pid` the
    /// process that holds most of it, or 0 and a flag in `scope` that says who does; told to its
    /// own domain alone. For `OWNER_SILENT`: `value` is the owner's error code, 0 = it did not
    /// answer; `pid` is the owner's, told to its own domain alone. For `UNSUPPORTED_FD`: `value` is
    /// an [`FdType`]. For a version refusal (`PROTOCOL` in answer to hello): `value` is the
    /// broker's version. For a request about objects: `value` and `pid` as the code says;
    /// `TIMED_OUT` in answer to a get: `value` is the index of a name that is not sealed, `pid` its
    /// maker, 0 = nobody. For a grant: [`crate::message::GrantItem::status`]. Otherwise 0.
    Status, StatusItem {
        /// 0 or an [`ErrorCode`].
        code: u16, U16;
        /// 0 or a [`Resource`].
        resource: u8, u8;
        /// 0, or a [`Scope`] and flags: see [`Status::scope`].
        scope: u8, u8;
        /// Pid of the largest holder, or of the silent owner, as the broker sees it, or 0.
        pid: u32, U32;
        /// What the code says it is; see [`Status`].
        value: u64, U64;
    }
}

impl Status {
    /// Success: every field is 0.
    pub const OK: Status = Status { code: 0, resource: 0, scope: 0, pid: 0, value: 0 };

    /// The allocation has ended, and nobody has a lease of it.
    pub const DRAINED: Status = Status { value: 1, ..Self::OK };

    /// `UNSUPPORTED_FD`: the handle names another memfd.
    pub const OTHER_MEMORY: Status = Status {
        code: ErrorCode::UnsupportedFd as u16,
        value: FdType::OtherMemory as u64,
        ..Self::OK
    };

    /// `NOT_PERMITTED` at connect: the listener serves pods, and the process is in none that the
    /// broker can tell.
    pub const NO_POD: Status =
        Status { code: ErrorCode::NotPermitted as u16, value: u32::MAX as u64, ..Self::OK };

    /// A failure with no detail.
    pub fn error(code: ErrorCode) -> Self {
        Status { code: code as u16, ..Self::OK }
    }

    /// A failure with a detail value.
    pub fn with_value(code: ErrorCode, value: u64) -> Self {
        Status { code: code as u16, value, ..Self::OK }
    }

    /// `NO_QUOTA`: which cap, whose, its value, and the pid of the largest holder (0 = unknown).
    pub fn no_quota(resource: Resource, scope: Scope, cap: u64, pid: u32) -> Self {
        let cap = match resource {
            Resource::Fds if cap != NO_CAP => cap.min(FDS_CAP),
            _ => cap,
        };
        Status {
            code: ErrorCode::NoQuota as u16,
            resource: resource as u8,
            scope: scope as u8,
            pid,
            value: cap,
        }
    }

    /// The same `NO_QUOTA` of `fds`, where so many of what the cap counts are declared by so many
    /// clients for their own memory, open or not.
    pub fn with_declared(self, declared: u64, clients: u64) -> Self {
        let (declared, clients) = (declared.min(DECLARED), clients.min(CLIENTS));
        let filled_by =
            declared << FDS_CAP.count_ones() | clients << (u64::BITS - CLIENTS.count_ones());
        match self.value {
            NO_CAP => self,
            cap => Status { value: cap | filled_by, ..self },
        }
    }

    /// The cap of a `NO_QUOTA`; `None`: a sum beyond all numbers.
    pub fn cap(&self) -> Option<u64> {
        match self.value {
            NO_CAP => None,
            value if self.resource == Resource::Fds as u8 => Some(value & FDS_CAP),
            value => Some(value),
        }
    }

    /// Of a `NO_QUOTA` of `fds`: how many fds are declared by clients for their own memory, and by
    /// how many clients. In `value`: the cap in the lowest 28 bits, these in 20 and in 16 bits
    /// above, each as much as fits.
    pub fn declared(&self) -> Option<(u64, u64)> {
        self.cap().filter(|_| self.resource == Resource::Fds as u8)?;
        let value = self.value >> FDS_CAP.count_ones();
        Some((value & DECLARED, value >> DECLARED.count_ones())).filter(|(fds, _)| *fds > 0)
    }

    /// Whose cap a `NO_QUOTA` names.
    pub fn scope(&self) -> Option<Scope> {
        Scope::from_number(self.scope & SCOPE)
    }

    /// The same `NO_QUOTA` of a domain, for its share of the node's cap.
    pub fn of_share(self) -> Self {
        Status { scope: self.scope | SHARE, ..self }
    }

    /// The same `NO_QUOTA` for somebody who must not know the process that holds most: it is
    /// another user's.
    pub fn of_another_user(self) -> Self {
        Status { pid: 0, scope: self.scope | OF_ANOTHER_USER, ..self }
    }

    /// The same `NO_QUOTA`, if no process holds as much as what belongs to none.
    pub fn of_no_process(self) -> Self {
        Status { pid: 0, scope: self.scope | OF_NO_PROCESS, ..self }
    }

    /// The same `NO_QUOTA`, where nothing is held: what was asked for is more than the cap.
    pub fn of_request(self) -> Self {
        Status { pid: 0, scope: self.scope | OF_REQUEST, ..self }
    }

    /// The same `NO_QUOTA` of a group that was to be kept or pinned as the version that it
    /// replaces.
    pub fn of_inherited(self) -> Self {
        Status { scope: self.scope | INHERITED, ..self }
    }

    /// Whether the code is 0.
    pub fn is_ok(&self) -> bool {
        self.code == 0
    }

    /// `Ok` or the error code; a number this build does not know reads as `INTERNAL`.
    pub fn result(&self) -> Result<(), ErrorCode> {
        match self.code {
            0 => Ok(()),
            number => Err(ErrorCode::from_number(number).unwrap_or(ErrorCode::Internal)),
        }
    }
}

impl From<ErrorCode> for Status {
    fn from(code: ErrorCode) -> Self {
        Status::error(code)
    }
}

/// What [`Status::NO_POD`] says.
pub const OUTSIDE_PODS: &str = "the listener serves pods alone (isolate = \"pod\"), and this process is in none: its cgroup cannot be read (the broker \
     needs hostPID), or is not the kubelet's; connect from a pod, by a listener without isolation, or set pods_cgroup";

/// Of [`Resource::Domains`] where a user or a pod has as many as one may have.
const DOMAINS_OF_USER: &str = "the uids of one pod, or of one user's ranges in /etc/subuid, make so many domains at most; end clients of some of them, or, if an \
     engine such as the kubelet has the ranges, name its user in subuid_pools";

/// A number of bytes, in the largest unit that says it exactly.
struct WholeBytes(u64);

impl std::fmt::Display for WholeBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let powers = match self.0 {
            0 => 0,
            bytes => bytes.trailing_zeros() / 10,
        };
        write!(f, "{} {}", self.0 >> (10 * powers), UNITS[powers as usize])
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = match self.result() {
            Ok(()) => return f.write_str("OK"),
            Err(code) => code,
        };
        let value = self.value;
        match code {
            ErrorCode::NoQuota => {
                let scope = self.scope().map_or("unknown", Scope::name);
                let resource = Resource::from_number(self.resource);
                let name = resource.map_or("unknown", Resource::name);
                let full = match (self.scope & OF_REQUEST, self.declared()) {
                    (0, None) => "is full".to_owned(),
                    (0, Some((fds, clients))) => {
                        let left = self.cap().unwrap_or_default().saturating_sub(fds);
                        format!(
                            "is full: {fds} declared by {clients} clients for their own memory (own fds) leave {left} for open ones"
                        )
                    }
                    _ => "is less than this request alone".to_owned(),
                };
                match self.cap() {
                    None => {
                        write!(f, "NO_QUOTA: {name} of the {scope} cannot be counted any more")?
                    }
                    Some(share) if self.scope & SHARE != 0 => write!(
                        f,
                        "NO_QUOTA: the user's share of the node cap {name}, {share} now, is used up"
                    )?,
                    Some(cap) if resource.is_some_and(|it| it.unit() == Unit::Bytes) => {
                        let cap = WholeBytes(cap);
                        write!(f, "NO_QUOTA: the {scope} cap {name} = {cap} {full}")?;
                    }
                    Some(most) if resource == Some(Resource::OwnFds) => write!(
                        f,
                        "NO_QUOTA: more own fds than the {scope} cap fds allows, {most} (caps.{scope}.fds)"
                    )?,
                    Some(cap) => write!(f, "NO_QUOTA: the {scope} cap {name} = {cap} {full}")?,
                }
                match self.pid {
                    0 if self.scope & OF_ANOTHER_USER != 0 => {
                        write!(f, ", most of it held by another user")?
                    }
                    0 if self.scope & OF_NO_PROCESS != 0 => {
                        let remedy = "`fdbroker objects` lists them, `fdbroker rm` ends them";
                        write!(f, ", most of it held by named objects or kept memory: {remedy}")?
                    }
                    0 => {}
                    pid => write!(f, ", most of it held by pid {pid}")?,
                }
                let remedy = resource.filter(|_| value != NO_CAP).map(|it| match self.scope() {
                    Some(Scope::Domain) if it == Resource::Domains => DOMAINS_OF_USER,
                    _ => it.remedy(),
                });
                write!(f, "; {}", remedy.unwrap_or("release what it counts"))?;
                let of_file =
                    if self.scope & SHARE != 0 { Some(Scope::Node) } else { self.scope() };
                if let (Some(resource), Some(scope), Some(_)) = (resource, of_file, remedy)
                    && resource.is_capped_in(scope)
                {
                    write!(f, " (caps.{scope}.{resource})")?;
                }
                match resource {
                    _ if self.scope & INHERITED == 0 => Ok(()),
                    Some(Resource::PermanentBytes) => f.write_str(INHERITED_PIN),
                    _ => f.write_str(INHERITED_KEEP),
                }
            }
            ErrorCode::UnsupportedFd => {
                let what = u8::try_from(value).ok().and_then(FdType::from_number);
                write!(f, "{code} (it is: {})", what.map_or("unknown", FdType::name))
            }
            ErrorCode::OwnerSilent => {
                let cause = u16::try_from(value).ok().and_then(ErrorCode::from_number);
                let cause = cause.map_or("unknown", ErrorCode::name);
                match (self.pid, value) {
                    (0, 0) => write!(f, "{code}"),
                    (0, _) => write!(f, "{code} (the owner said {cause})"),
                    (pid, 0) => write!(f, "{code} (the owner is pid {pid})"),
                    (pid, _) => write!(f, "{code} (the owner, pid {pid}, said {cause})"),
                }
            }
            ErrorCode::Version if value == 0 => write!(f, "{code} (no object has it)"),
            ErrorCode::Version => write!(f, "{code} (it has version {value})"),
            code if *self == Status::NO_POD => write!(f, "{}: {OUTSIDE_PODS}", code.name()),
            code => write!(f, "{code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_when_a_cap_is_full_then_the_remedy_fits_the_resource() {
        let fds = Status::no_quota(Resource::Fds, Scope::Node, 64, 99).to_string();
        assert!(fds.contains("cap fds = 64 is full, most of it held by pid 99; rel"), "{fds}");
        let remedy = "; release leases or registrations, or raise the cap (caps.node.fds)";
        assert!(fds.ends_with(remedy), "{fds}");
        for (scope, said) in
            [(Scope::Node, "raise limits.max_domains"), (Scope::Domain, "subuid_pools")]
        {
            let domains = Status::no_quota(Resource::Domains, scope, 16, 0).to_string();
            assert!(
                domains.contains("cap domains = 16 is full") && domains.contains(said),
                "{domains}"
            );
        }
        for (version, said) in [(0, " (no object has it)"), (7, " (it has version 7)")] {
            let other = Status::with_value(ErrorCode::Version, version).to_string();
            assert!(other.starts_with("VERSION: ") && other.ends_with(said), "{other}");
        }
        let no_pod = Status::NO_POD.to_string();
        assert!(no_pod.starts_with("NOT_PERMITTED: the listener serves pods alone"), "{no_pod}");
        let others = Status::no_quota(Resource::Fds, Scope::Node, 64, 99).of_another_user();
        assert!(others.to_string().contains("= 64 is full, most of it held by another user; rel"));
        assert_eq!((others.scope(), others.pid), (Some(Scope::Node), 0));
        let kept = Status::no_quota(Resource::Fds, Scope::Domain, 64, 99).of_no_process();
        assert!(kept.to_string().contains("held by named objects or kept memory: `fdb"), "{kept}");
        let share = Status::no_quota(Resource::KeptBytes, Scope::Domain, 64, 0).of_share();
        let text = share.to_string();
        assert!(text.contains("the user's share of the node cap kept_bytes, 64 now, is"), "{text}");
        assert_eq!(share.scope(), Some(Scope::Domain));
        for (cap, said) in [(1 << 20, "1 MiB"), (1500, "1500 B"), (0, "0 B"), (1 << 63, "8 EiB")] {
            let bytes = Status::no_quota(Resource::KeptBytes, Scope::Node, cap, 0).to_string();
            assert!(bytes.contains(&format!("cap kept_bytes = {said} is full; del")), "{bytes}");
        }
        let clients = Status::no_quota(Resource::Connections, Scope::Domain, 2, 0).to_string();
        assert!(clients.contains("the domain cap connections = 2 is full; end"), "{clients}");
        for resource in Resource::ALL {
            let text = Status::no_quota(*resource, Scope::Node, 1, 0).to_string();
            assert!(text.contains(resource.remedy()), "{text}");
            // A cap can be raised where there is one, else the configuration has a limit.
            let raised = resource.remedy().split_once(", or raise ").map(|(_, what)| what);
            let is_right = match resource.scopes() {
                [] => raised.is_none_or(|what| what.starts_with("limits.")),
                _ => raised.is_some_and(|what| what.starts_with("the cap")),
            };
            assert!(is_right, "{text}");
        }
        let newer = Status { resource: 200, ..Status::no_quota(Resource::Fds, Scope::Job, 1, 0) };
        assert!(newer.to_string().ends_with("; release what it counts"), "{newer}");
    }

    #[test]
    fn status_when_declared_fds_fill_a_cap_then_how_many_by_whom_and_the_key_of_the_file() {
        let full = Status::no_quota(Resource::Fds, Scope::Job, 256, 7);
        assert_eq!((full.cap(), full.declared()), (Some(256), None));
        let full = full.with_declared(105, 52);
        assert_eq!((full.cap(), full.declared()), (Some(256), Some((105, 52))));
        let expected = "NO_QUOTA: the job cap fds = 256 is full: 105 declared by 52 clients for their own memory (own fds) leave 151 for open ones, \
             most of it held by pid 7; release leases or registrations, or raise the cap (caps.job.fds)";
        assert_eq!(full.to_string(), expected);
        let most = Status::no_quota(Resource::Fds, Scope::Node, u64::MAX - 1, 0);
        let most = most.with_declared(u64::MAX, u64::MAX);
        assert_eq!((most.cap(), most.declared()), (None, None), "all bits: no number");
        let share = Status::no_quota(Resource::Fds, Scope::Domain, 64, 0).of_share();
        assert!(share.to_string().ends_with("(caps.node.fds)"), "{share}");
    }

    #[test]
    fn status_when_the_owner_is_silent_then_its_pid_and_its_error_are_said_if_known() {
        let text = |pid: u32, value| {
            let status = Status::with_value(ErrorCode::OwnerSilent, value);
            Status { pid, ..status }.to_string()
        };
        let said = ErrorCode::NotSupported as u64;
        assert!(text(0, 0).ends_with("recall callback"), "{}", text(0, 0));
        assert!(text(9, 0).ends_with(" (the owner is pid 9)"), "{}", text(9, 0));
        assert!(text(0, said).ends_with(" (the owner said NOT_SUPPORTED)"), "{}", text(0, said));
        let both = text(9, said);
        assert!(both.ends_with(" (the owner, pid 9, said NOT_SUPPORTED)"), "{both}");
    }

    #[test]
    fn status_when_there_is_no_cap_then_no_number_is_said() {
        let text = Status::no_quota(Resource::HeldBytes, Scope::Node, NO_CAP, 9).to_string();
        let expected = "NO_QUOTA: held_bytes of the node cannot be counted any more, most of it held by pid 9; \
            release what it counts";
        assert_eq!(text, expected);
    }
}
