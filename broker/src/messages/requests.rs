//! Takes clients' messages apart into the core's inputs, checking every value first. Must never
//! believe a number, keep an fd, or allocate in the steady state: the lists are reused.

use crate::fds::classify::{Classifier, Unfit};
use crate::fds::table::FdTable;
use crate::limits::REFUSED_LOOKS_PER_MESSAGE;
use fdbroker_core::{
    Arrived, Body, ClientId, Core, Declared, Deposit, File, FileId, Input, Judged, Lane, LeaseId,
    Now, Redeposit, RequestId, Supply, Wanted,
};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::handle::HandlePrefixItem;
use fdbroker_protocol::limits::{DRIVER_DATA_BYTES, MAX_DEADLINE_MS};
use fdbroker_protocol::message::{
    AcquireHead, AllocationItem, DeclareItem, LeaseItem, RedepositItem, RegisterHead, RegisterItem,
    Resolve, SupplyItem, declare_flags, register_flags, resolve_flags,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, FdType, Kind, MemoryKind, NodeKey, Share, Status,
};
use std::os::fd::BorrowedFd;

/// What is wrong with a message that is not handed to the core: it is answered PROTOCOL, and the
/// connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// Its length, counts or kind are not what the protocol says.
    #[error("{0}")]
    Decode(DecodeError),
    /// Longer than any message.
    #[error("a message is longer than 65536 bytes")]
    TooLong,
    /// A message without bytes.
    #[error("a message has no bytes")]
    Empty,
    /// A request needs an id.
    #[error("a {0} message has no id")]
    NoId(Kind),
    /// A request for nothing.
    #[error("a {0} message has no items")]
    NoItems(Kind),
    /// Before hello, or hello twice.
    #[error("a {0} message comes at the wrong time")]
    OutOfTurn(Kind),
    /// Fds beyond the credit.
    #[error("{fds} fds came with a message, and the client has credit for {credits}")]
    NoCredit {
        /// As the message says.
        fds: u16,
        /// At most this many were welcome.
        credits: usize,
    },
    /// The first message does not begin as a hello does.
    #[error("the first message has not the magic of fdbroker")]
    Magic,
    /// No version that both speak.
    #[error("the client speaks protocol versions {min} to {max}")]
    NoVersion {
        /// Lowest version that it speaks.
        min: u16,
        /// Highest version that it speaks.
        max: u16,
    },
}

impl From<DecodeError> for Breach {
    fn from(error: DecodeError) -> Self {
        Breach::Decode(error)
    }
}

/// The lists that inputs borrow from, reused.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Of the last register; its reply needs them.
    pub deposits: Vec<Arrived>,
    /// Of the grant at hand, in its order.
    pub slots: Vec<u32>,
    ids: Vec<AllocationId>,
    pub wanted: Vec<Wanted>,
    leases: Vec<LeaseId>,
    supplies: Vec<Supply>,
    redeposits: Vec<Redeposit>,
    declared: Vec<Declared>,
}

impl Scratch {
    /// What the last register or redeposit says at this index, if it is sound.
    pub fn deposit(&self, index: u16) -> Option<&Deposit> {
        let index = usize::from(index);
        let arrived = self.deposits.get(index).and_then(|it| it.judged.as_ref().ok());
        let claimed = arrived.map(|judged| &judged.claimed);
        claimed.or_else(|| self.redeposits.get(index).map(|it| &it.deposit))
    }
}

/// What decoding needs to know besides the message.
pub struct Context<'a> {
    pub client: ClientId,
    /// The time of the wake.
    pub now: Now,
    /// Number of this node, which handles name.
    pub node: u64,
    /// The key of this broker's handles.
    pub key: &'a NodeKey,
    /// Knows what is recalled, and what the client may send.
    pub core: &'a Core,
    /// Has the fds of the message.
    pub fds: &'a mut FdTable,
    /// Says what these fds are.
    pub classifier: &'a mut Classifier,
    /// The first fd whose type only its fdinfo tells. Until a lane has read that, nothing of the
    /// message counts.
    pub unread: Option<usize>,
    /// Fds that came with supplies and are not what was asked for, and why: their owner is told.
    pub refused: Vec<(AllocationId, Status)>,
}

impl Context<'_> {
    /// Whether an fd that was found to be of this file is other memory than the handle of the
    /// allocation in a slot names. Exporters make a new file for each export of device memory.
    fn is_other(&self, slot: u32, facts: &Facts, file: Option<File>) -> bool {
        facts.kind == MemoryKind::Memfd && file.is_some_and(|file| self.fds.is_other(slot, file.id))
    }

    /// The fd of a supply is not what was asked for.
    fn refuse(&mut self, supply: &mut Supply, status: Status, fd: (u16, Lane)) {
        supply.fd = Err(ErrorCode::UnsupportedFd);
        supply.refused_fd = Some(fd);
        self.refused.push((supply.id, status));
    }
}

/// A message of the main socket, after hello.
pub fn decode_request<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &mut Context<'_>,
) -> Result<Input<'s>, Breach> {
    if message.kind != Kind::Register {
        expect_fds(message, 0)?;
    }
    let client = context.client;
    match message.kind {
        Kind::Acquire => decode_acquire(message, scratch, context),
        Kind::Release | Kind::Mapped => {
            fill(&mut scratch.leases, message.items::<LeaseItem>()?, |item| {
                LeaseId(item.lease.get())
            });
            let leases = &scratch.leases[..];
            let body = match message.kind {
                Kind::Release => Body::Release { leases },
                _ => Body::Mapped { leases },
            };
            // Without an id it is one-way.
            Ok(body.by(client, RequestId(message.id)))
        }
        Kind::Register => decode_register(message, scratch, context),
        Kind::Fetch => {
            let handles = message.items::<HandlePrefixItem>()?;
            fill(&mut scratch.wanted, handles, |handle| {
                context.key.open(context.node, &handle.get())
            });
            Ok(Body::AcquireAhead { wanted: &scratch.wanted }.by(client, RequestId::ONE_WAY))
        }
        Kind::Unregister => {
            let request = request_id(message)?;
            fill(&mut scratch.ids, message.items::<AllocationItem>()?, |item| AllocationId {
                slot: item.slot.get(),
                generation: item.generation.get(),
            });
            Ok(Body::Unregister { ids: &scratch.ids }.by(client, request))
        }
        Kind::Cancel => {
            expect_empty(message)?;
            Ok(Body::Cancel.by(client, request_id(message)?))
        }
        Kind::Complete => {
            expect_empty(message)?;
            Ok(Body::Complete.by(client, RequestId::ONE_WAY))
        }
        Kind::Redeposit => decode_redeposit(message, scratch, context),
        Kind::Declare => decode_declare(message, scratch, context),
        Kind::Hello => Err(Breach::OutOfTurn(message.kind)),
        other => Err(DecodeError::Unexpected(other).into()),
    }
}

/// A message of the event socket.
pub fn decode_event<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &mut Context<'_>,
) -> Result<Input<'s>, Breach> {
    if message.kind != Kind::Supply {
        return Err(DecodeError::Unexpected(message.kind).into());
    }
    let items = message.items::<SupplyItem>()?;
    let with_fd = items.iter().filter(|item| item.code.get() == 0).count();
    expect_fds(message, with_fd)?;
    // What is stored from this message is no deposit.
    scratch.deposits.clear();
    scratch.redeposits.clear();
    let mut next_fd = 0;
    let supplies = &mut scratch.supplies;
    fill(supplies, items, |item| decode_supply(item, &mut next_fd, context));
    Ok(Body::Supply { supplies }.by(context.client, RequestId::ONE_WAY))
}

/// A request without a body.
pub fn check_empty_request(message: &Message<'_>) -> Result<RequestId, Breach> {
    expect_fds(message, 0)?;
    expect_empty(message)?;
    request_id(message)
}

/// The body of a resolve, and whether the fds are to be sent ahead.
pub fn check_resolve<'m>(message: &Message<'m>) -> Result<(&'m Resolve, bool), Breach> {
    expect_fds(message, 0)?;
    request_id(message)?;
    let wanted = message.body_as::<Resolve>()?;
    let flags = wanted.flags.get();
    if flags & !resolve_flags::ALL != 0 {
        return Err(DecodeError::Unexpected(message.kind).into());
    }
    Ok((wanted, flags & resolve_flags::AHEAD != 0))
}

fn decode_acquire<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &Context<'_>,
) -> Result<Input<'s>, Breach> {
    let request = request_id(message)?;
    let (head, handles) = message.head_and_items::<AcquireHead, HandlePrefixItem>()?;
    expect_items(message, handles.len())?;
    fill(&mut scratch.wanted, handles, |handle| context.key.open(context.node, &handle.get()));
    Ok(Body::Acquire {
        wanted: &scratch.wanted,
        deadline: deadline(context.now, head.deadline_ms.get()),
    }
    .by(context.client, request))
}

fn decode_register<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &mut Context<'_>,
) -> Result<Input<'s>, Breach> {
    let request = request_id(message)?;
    let (head, items) = message.head_and_items::<RegisterHead, RegisterItem>()?;
    expect_fds(message, items.len())?;
    scratch.redeposits.clear();
    let mut index = 0;
    // Nothing beyond the credit is kept, so these fds are not worth a look.
    let is_worth_it = items.len() as u64 <= context.core.deposit_credits(context.client);
    let mut refused = 0;
    fill(&mut scratch.deposits, items, |item| {
        index += 1;
        if refused == REFUSED_LOOKS_PER_MESSAGE {
            return Arrived { judged: Err(ErrorCode::Again.into()), lane: Lane::Refused };
        }
        let deposit = decode_deposit(item, is_worth_it.then_some(index - 1), context);
        refused += usize::from(is_worth_it && deposit.lane == Lane::Refused);
        deposit
    });
    Ok(Body::Register {
        deposits: &scratch.deposits,
        credits_wanted: head.credits_wanted.get(),
        deadline: deadline(context.now, head.deadline_ms.get()),
    }
    .by(context.client, request))
}

/// Allocations from before a crash. Each has a status of its own when something is wrong with it.
fn decode_redeposit<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &Context<'_>,
) -> Result<Input<'s>, Breach> {
    let request = request_id(message)?;
    let (_, items) = message.head_and_items::<RegisterHead, RedepositItem>()?;
    expect_items(message, items.len())?;
    scratch.deposits.clear();
    fill(&mut scratch.redeposits, items, |item| decode_redeposited(item, context));
    Ok(Body::Redeposit { items: &scratch.redeposits }.by(context.client, request))
}

fn decode_redeposited(redeposit: &RedepositItem, context: &Context<'_>) -> Redeposit {
    let prefix = redeposit.handle.get().prefix;
    let ended = redeposit.item.flags & register_flags::ENDED != 0;
    let item =
        RegisterItem { flags: redeposit.item.flags & !register_flags::ENDED, ..redeposit.item };
    let (deposit, is_broken) = claimed_deposit(&item);
    let id = context.key.open(context.node, &prefix).and_then(|id| {
        if !context.key.verify_token(id, &redeposit.token) {
            Err(ErrorCode::NotPermitted)
        } else if is_broken || item.facts.kind != prefix.kind {
            Err(ErrorCode::Protocol)
        } else {
            Ok(id)
        }
    });
    Redeposit { id, deposit, ended }
}

fn decode_declare<'s>(
    message: &Message<'_>,
    scratch: &'s mut Scratch,
    context: &Context<'_>,
) -> Result<Input<'s>, Breach> {
    let request = request_id(message)?;
    let items = message.items::<DeclareItem>()?;
    expect_items(message, items.len())?;
    fill(&mut scratch.declared, items, |item| {
        let flags = item.flags.get();
        let wanted = match flags & !declare_flags::ALL {
            0 if flags & declare_flags::OBJECT != 0 => {
                let id = item.handle.get().id();
                let is_one = context.core.is_object_of_domain(context.client, id);
                is_one.then_some(id).ok_or(ErrorCode::Stale)
            }
            0 => context.key.open(context.node, &item.handle.get()),
            _ => Err(ErrorCode::Protocol),
        };
        Declared { wanted, open: flags & declare_flags::OPEN != 0 }
    });
    Ok(Body::Declare { items: &scratch.declared }.by(context.client, request))
}

/// What an item claims, before the fd is looked at; and whether it is broken.
fn claimed_deposit(item: &RegisterItem) -> (Deposit, bool) {
    let facts = item.facts.get();
    let share = Share::from_number(item.share);
    let length = item.driver_data_len;
    let is_broken = facts.is_none_or(|facts| facts.size_bytes == 0)
        || share.is_none()
        || item.flags & !register_flags::ALL != 0
        || usize::from(length) > DRIVER_DATA_BYTES;
    let deposit = Deposit {
        facts: facts.unwrap_or(Facts::NONE),
        share: share.unwrap_or(Share::Uid),
        recallable: item.flags & register_flags::RECALLABLE != 0,
        keep: item.flags & register_flags::KEEP != 0,
        base: item.base.get(),
        driver_data: (length != 0 && !is_broken).then_some((length, item.driver_data)),
        virtual_fd: item.flags & register_flags::VIRTUAL_FD != 0,
    };
    (deposit, is_broken)
}

/// One deposit, whatever it is: what is wrong with it is said in its own status. `index`: of its
/// fd, if that is looked at.
fn decode_deposit(item: &RegisterItem, index: Option<usize>, context: &mut Context<'_>) -> Arrived {
    let (claimed, is_broken) = claimed_deposit(item);
    let (found, lane) = match index {
        Some(index) => check_fd(context, index, claimed.share, &claimed.facts),
        None => (Err(ErrorCode::Protocol.into()), Lane::Refused),
    };
    // An fd that was recognised closes in its time even when the deposit is refused for something
    // else.
    let found = if is_broken { Err(ErrorCode::Protocol.into()) } else { found };
    let found = found.and_then(|file| match context.core.named_by(context.client, &claimed) {
        Some(slot) if context.is_other(slot, &claimed.facts, file) => Err(Status::OTHER_MEMORY),
        _ => Ok(file),
    });
    Arrived { judged: found.map(|file| Judged { claimed, file }), lane }
}

/// Whether the fd at `index` is what its producer says, and which closer may close it.
fn check_fd(
    context: &mut Context<'_>,
    index: usize,
    share: Share,
    facts: &Facts,
) -> (Result<Option<File>, Status>, Lane) {
    look_at(context, index, |classifier, fd| classifier.check(fd, share, facts))
}

/// The same for the fd of a group of objects.
pub(super) fn check_memory(
    context: &mut Context<'_>,
    index: usize,
    facts: &Facts,
) -> (Result<Option<File>, Status>, Lane) {
    look_at(context, index, |classifier, fd| classifier.check_of_objects(fd, facts))
}

fn look_at(
    context: &mut Context<'_>,
    index: usize,
    check: impl FnOnce(&mut Classifier, BorrowedFd<'_>) -> Result<(FileId, Option<File>), Unfit>,
) -> (Result<Option<File>, Status>, Lane) {
    let unsupported = |what: FdType| Err(Status::with_value(ErrorCode::UnsupportedFd, what as u64));
    let Some(fd) = context.fds.arrived(index) else {
        return (unsupported(FdType::Unknown), Lane::Refused);
    };
    match check(context.classifier, fd) {
        Ok((id, file)) => {
            context.fds.note_file(index, id);
            (Ok(file), Lane::Accepted)
        }
        Err(Unfit::Is(
            what @ (FdType::TooSmall
            | FdType::KindMismatch
            | FdType::UnsealedMemfd
            | FdType::GrowableMemfd
            | FdType::FinalMemfd),
        )) => (unsupported(what), Lane::Accepted),
        Err(Unfit::Is(what)) => (unsupported(what), Lane::Refused),
        Err(Unfit::Unread(what)) => {
            context.unread.get_or_insert(index);
            (unsupported(what), Lane::Refused)
        }
    }
}

/// One answer to a recall; `next_fd` counts the fds of the message used up so far.
fn decode_supply(item: &SupplyItem, next_fd: &mut u16, context: &mut Context<'_>) -> Supply {
    let id = AllocationId { slot: item.slot.get(), generation: item.generation.get() };
    // Of no kind that is known: then it is not what was registered.
    let facts = item.facts.get().unwrap_or(Facts::NONE);
    let mut supply =
        Supply { id, fd: Err(ErrorCode::Internal), refused_fd: None, file: None, facts };
    if item.code.get() != 0 {
        let code = ErrorCode::from_number(item.code.get());
        supply.fd = Err(code.unwrap_or(ErrorCode::Internal));
        return supply;
    }
    let index = *next_fd;
    *next_fd += 1;
    // An fd that nobody asked for is not worth a look, and there is no place for it.
    if !context.core.is_awaited_from(context.client, id) {
        supply.fd = Err(ErrorCode::UnsupportedFd);
        supply.refused_fd = Some((index, Lane::Refused));
        return supply;
    }
    let allocation = context.core.allocation(id);
    let share = allocation.map_or(Share::Uid, |it| it.traits.share());
    match check_fd(context, usize::from(index), share, &facts) {
        (Ok(file), lane) if context.is_other(id.slot, &facts, file) => {
            context.refuse(&mut supply, Status::OTHER_MEMORY, (index, lane));
        }
        (Ok(file), _) => (supply.fd, supply.file) = (Ok(index), file),
        (Err(status), lane) => context.refuse(&mut supply, status, (index, lane)),
    }
    supply
}

fn expect_empty(message: &Message<'_>) -> Result<(), Breach> {
    match message.body.len() {
        0 => Ok(()),
        got => Err(DecodeError::Length { kind: message.kind, got, expected: 0 }.into()),
    }
}

pub(super) fn request_id(message: &Message<'_>) -> Result<RequestId, Breach> {
    match message.id {
        0 => Err(Breach::NoId(message.kind)),
        id => Ok(RequestId(id)),
    }
}

pub(super) fn expect_items(message: &Message<'_>, items: usize) -> Result<(), Breach> {
    if items == 0 { Err(Breach::NoItems(message.kind)) } else { Ok(()) }
}

/// The announced fds have been compared with those that came; this compares them with those the
/// items need.
pub(super) fn expect_fds(message: &Message<'_>, needed: usize) -> Result<(), Breach> {
    if usize::from(message.fd_count) == needed {
        Ok(())
    } else {
        let announced = u16::try_from(needed).unwrap_or(u16::MAX);
        let arrived = message.fd_count.into();
        Err(DecodeError::FdCount { announced, arrived }.into())
    }
}

/// When a request that may wait for so many milliseconds is answered in any case.
pub(crate) fn deadline(now: Now, ms: u32) -> Now {
    Now(now.0 + u64::from(ms.min(MAX_DEADLINE_MS)) * 1000)
}

fn fill<T, I>(list: &mut Vec<T>, items: &[I], map: impl FnMut(&I) -> T) {
    list.clear();
    list.extend(items.iter().map(map));
}
