//! Requests about named objects taken apart, and the answers to them. Must never believe a number,
//! nor look at more names for one answer than a page has.

use crate::limits::NAMES_PER_PAGE;
use crate::messages::replies::granted_item;
use crate::messages::requests::{
    Breach, Context, Scratch, check_memory, deadline, expect_fds, expect_items, request_id,
};
use fdbroker_core::{
    Arrived, ClientId, Core, Create, Deleted, Deposit, GotObject, Granted, GroupId, Inherits,
    Judged, NewObject, Now, ObjectView, RequestId,
};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::{
    DRIVER_DATA_BYTES, MAX_BATCH, MAX_OBJECT_MESSAGE_BYTES, METADATA_IN_GOT_BYTES,
};
use fdbroker_protocol::message::Header;
use fdbroker_protocol::named::{NamedItems, got_bytes};
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectGetHead, ObjectGotHead, ObjectGotItem,
    ObjectGroup, ObjectItem, ObjectName, ObjectPage, ObjectRecord, ObjectScope, ObjectSealed,
    ObjectState, ObjectTouchHead, object_flags, record_flags,
};
use fdbroker_protocol::{ErrorCode, Facts, Kind, MemoryKind, Status, Writer};
use zerocopy::FromZeros;

/// Whether a message is about named objects.
pub fn is_about_objects(kind: Kind) -> bool {
    (Kind::ObjectCreate as u16..=Kind::ObjectEvents as u16).contains(&(kind as u16))
}

/// What a request asks for. Names and metadata lie in the message.
#[derive(Debug)]
pub enum Wish<'m> {
    /// To begin a group.
    Create(Box<NewGroup<'m>>),
    /// More objects for it.
    Add(GroupId, Vec<NewObject<'m>>),
    /// To show the group to readers.
    Seal(GroupId),
    /// To give it up.
    Abort(GroupId),
    /// Objects by name; those that are missing are waited for until then.
    Get(Vec<&'m [u8]>, Now),
    /// Names to be free.
    Delete(Vec<Deleted<'m>>),
    /// Names that begin with the first, behind the second.
    List(&'m [u8], &'m [u8]),
    /// What is known of names.
    Stat(Vec<&'m [u8]>),
    /// Names to be used, and maybe kept for so many us, pinned or pinned no more.
    Touch(Vec<&'m [u8]>, Option<u64>, Option<bool>),
    /// To be told of names that begin so, or no more.
    Watch(&'m [u8], bool),
}

/// A request taken apart.
#[derive(Debug)]
pub struct Asked<'m> {
    /// The client's number for it.
    pub request: RequestId,
    /// Its names are those of the client's job.
    pub of_job: bool,
    /// It has flags that this release does not know.
    pub is_unknown: bool,
    /// What it asks for.
    pub wish: Wish<'m>,
}

/// A group to begin; see [`Create`].
#[derive(Debug)]
pub struct NewGroup<'m> {
    flags: u32,
    keep_us: u64,
    credits_wanted: u32,
    deposit: Arrived,
    objects: Vec<NewObject<'m>>,
}

impl NewGroup<'_> {
    pub fn create(&self) -> Create<'_> {
        let has = |flag: u32| self.flags & flag != 0;
        Create {
            of_job: has(object_flags::JOB),
            replace: has(object_flags::REPLACE),
            keep_us: has(object_flags::KEEP).then_some(self.keep_us),
            pin: has(object_flags::PIN),
            inherits: Inherits {
                keep: !has(object_flags::KEEP | object_flags::NO_KEEP),
                pin: !has(object_flags::PIN | object_flags::NO_PIN),
            },
            outlives: has(object_flags::OUTLIVE),
            evictable: has(object_flags::EVICTABLE),
            deposit: self.deposit,
            credits_wanted: self.credits_wanted,
            objects: &self.objects,
        }
    }
}

/// Takes a request apart. Of a create, `scratch` gets the deposit.
pub fn decode<'m>(
    message: &Message<'m>,
    scratch: &mut Scratch,
    context: &mut Context<'_>,
) -> Result<Asked<'m>, Breach> {
    expect_fds(message, usize::from(message.kind == Kind::ObjectCreate))?;
    let request = request_id(message)?;
    let (flags, known, wish) = match message.kind {
        Kind::ObjectCreate => {
            let group = decode_create(message, context)?;
            scratch.deposits.clear();
            scratch.deposits.push(group.deposit);
            // Unknown ones are said in its deposit, so that its fd goes the right way.
            (group.flags, u32::MAX, Wish::Create(Box::new(group)))
        }
        Kind::ObjectAdd => {
            let (head, items) = message.head_and_named::<ObjectGroup, ObjectItem>()?;
            expect_items(message, items.len())?;
            (0, 0, Wish::Add(GroupId(head.group.get()), new_objects(items)))
        }
        Kind::ObjectSeal => (0, 0, Wish::Seal(group_of(message)?)),
        Kind::ObjectAbort => (0, 0, Wish::Abort(group_of(message)?)),
        Kind::ObjectGet => {
            let (head, items) = message.head_and_named::<ObjectGetHead, ObjectName>()?;
            expect_items(message, items.len())?;
            let deadline = deadline(context.now, head.deadline_ms.get());
            (head.flags.get(), object_flags::OF_NAMES, Wish::Get(names(items), deadline))
        }
        Kind::ObjectDelete => {
            let (head, items) = message.head_and_named::<ObjectScope, ObjectDeleteItem>()?;
            expect_items(message, items.len())?;
            let deleted =
                items.map(|(item, name, _)| Deleted { name, version: item.version.get() });
            (head.flags.get(), object_flags::OF_NAMES, Wish::Delete(deleted.collect()))
        }
        Kind::ObjectList => {
            let (head, prefix, after) = message.prefix()?;
            (head.flags.get(), object_flags::OF_NAMES, Wish::List(prefix, after))
        }
        Kind::ObjectStat => {
            let (head, items) = message.head_and_named::<ObjectScope, ObjectName>()?;
            expect_items(message, items.len())?;
            (head.flags.get(), object_flags::OF_NAMES, Wish::Stat(names(items)))
        }
        Kind::ObjectTouch => {
            let (head, items) = message.head_and_named::<ObjectTouchHead, ObjectName>()?;
            expect_items(message, items.len())?;
            let flags = head.flags.get();
            let keep_us = (flags & object_flags::KEEP != 0).then(|| keep_us(head.ttl_ms.get()));
            let pin = match flags & (object_flags::PIN | object_flags::UNPIN) {
                0 => None,
                object_flags::PIN => Some(true),
                object_flags::UNPIN => Some(false),
                _ => return Ok(Asked::unknown(request)),
            };
            (flags, object_flags::OF_TOUCH, Wish::Touch(names(items), keep_us, pin))
        }
        Kind::ObjectWatch => {
            let (head, prefix, _) = message.prefix()?;
            let flags = head.flags.get();
            let is_wanted = flags & object_flags::UNWATCH == 0;
            (flags, object_flags::OF_WATCH, Wish::Watch(prefix, is_wanted))
        }
        other => return Err(fdbroker_protocol::DecodeError::Unexpected(other).into()),
    };
    let (of_job, is_unknown) = (flags & object_flags::JOB != 0, flags & !known != 0);
    Ok(Asked { request, of_job, is_unknown, wish })
}

fn group_of(message: &Message<'_>) -> Result<GroupId, Breach> {
    Ok(GroupId(message.body_as::<ObjectGroup>()?.group.get()))
}

fn names<'m>(items: NamedItems<'m, ObjectName>) -> Vec<&'m [u8]> {
    items.map(|(_, name, _)| name).collect()
}

fn new_objects<'m>(items: NamedItems<'m, ObjectItem>) -> Vec<NewObject<'m>> {
    let new = items.map(|(item, name, metadata)| NewObject {
        name,
        offset: item.offset.get(),
        size_bytes: item.size_bytes.get(),
        expect: (item.flags & ObjectItem::EXPECT != 0).then_some(item.expect.get()),
        metadata,
    });
    new.collect()
}

/// 0 = as long as the broker allows.
fn keep_us(ttl_ms: u64) -> u64 {
    if ttl_ms == 0 { u64::MAX } else { ttl_ms.saturating_mul(1000) }
}

fn decode_create<'m>(
    message: &Message<'m>,
    context: &mut Context<'_>,
) -> Result<NewGroup<'m>, Breach> {
    let (head, items) = message.head_and_named::<ObjectCreateHead, ObjectItem>()?;
    let (flags, length) = (head.flags.get(), head.driver_data_len);
    let facts = head.facts.get();
    let contradict = |both: u32| flags & both == both;
    let is_broken = facts.is_none_or(|facts| facts.size_bytes == 0)
        || flags & !object_flags::OF_CREATE != 0
        || contradict(object_flags::PIN | object_flags::NO_PIN)
        || contradict(object_flags::KEEP | object_flags::NO_KEEP)
        || usize::from(length) > DRIVER_DATA_BYTES;
    let facts = facts.unwrap_or(Facts::NONE);
    let (found, lane) = check_memory(context, 0, &facts);
    let found = if is_broken { Err(ErrorCode::Protocol.into()) } else { found };
    let driver_data = (length != 0).then_some((length, head.driver_data));
    let claimed = Deposit { driver_data, ..facts.into() };
    let judged = found.map(|file| Judged { claimed, file });
    let deposit = Arrived { judged, lane };
    let keep_us = keep_us(head.ttl_ms.get());
    let credits_wanted = head.credits_wanted.get().into();
    Ok(NewGroup { flags, keep_us, credits_wanted, deposit, objects: new_objects(items) })
}

impl Asked<'_> {
    /// A request whose flags contradict each other, or are not known.
    fn unknown(request: RequestId) -> Self {
        let wish = Wish::Stat(Vec::new());
        Asked { request, of_job: false, is_unknown: true, wish }
    }
}

// --- answers -------------------------------------------------------------------------------------

/// The answer to a create. `ends_with_broker`: kept objects do.
pub fn write_created(
    writer: &mut Writer,
    request: RequestId,
    group: GroupId,
    deposit_credits: u32,
    ends_with_broker: bool,
) -> &[u8] {
    let flags = if ends_with_broker { ObjectCreated::KEPT_ENDS_WITH_BROKER } else { 0 };
    let created = ObjectCreated {
        group: group.0.into(),
        deposit_credits: deposit_credits.into(),
        flags: flags.into(),
    };
    writer.start(Kind::ObjectCreated, request.0).push(&created);
    writer.finish(0, 0)
}

/// The answer to a seal.
pub fn write_sealed(writer: &mut Writer, request: RequestId, version: u64) -> &[u8] {
    let sealed = ObjectSealed { version: version.into() };
    writer.start(Kind::ObjectSealed, request.0).push(&sealed);
    writer.finish(0, 0)
}

/// The answer to a get; `slots` gets the slot of each fd, in order. As much metadata goes along as
/// there is room for.
pub fn write_got<'w>(
    writer: &'w mut Writer,
    request: RequestId,
    core: &Core,
    (objects, grants): (&[GotObject], &[Granted]),
    slots: &mut Vec<u32>,
) -> &'w [u8] {
    let count = u16::try_from(grants.len()).expect("at most as many as a message has items");
    let head = ObjectGotHead { grants: count.into(), reserved: [0.into(); 3] };
    writer.start(Kind::ObjectGot, request.0).push(&head);
    let ids = grants.iter().filter_map(|grant| grant.wanted.ok());
    let blocks = ids.clone().filter_map(|id| core.driver_data(id)).count();
    let mut room =
        MAX_OBJECT_MESSAGE_BYTES.saturating_sub(got_bytes(objects.len(), grants.len(), blocks));
    let mut with_metadata = Vec::new();
    for object in objects {
        let metadata = core.metadata_of(object);
        let fits = metadata.len() <= METADATA_IN_GOT_BYTES.min(room);
        let metadata = if fits { metadata } else { &[] };
        room -= metadata.len();
        with_metadata.push(metadata);
        writer.push(&ObjectGotItem {
            version: object.version.into(),
            offset: object.offset.into(),
            size_bytes: object.size_bytes.into(),
            grant: object.grant.into(),
            metadata_len: object.metadata_len.into(),
            metadata_here: u8::try_from(metadata.len()).expect("at most 64"),
            reserved: [0; 3],
        });
    }
    slots.clear();
    for (grant, id) in grants.iter().zip(ids.clone()) {
        let fd_index = u16::try_from(slots.len()).expect("at most 253 grants");
        let length = core.driver_data(id).map_or(0, |(length, _)| *length);
        slots.push(id.slot);
        writer.push(&granted_item(grant, id, fd_index, length));
    }
    ids.filter_map(|id| core.driver_data(id)).for_each(|(_, bytes)| _ = writer.push(bytes));
    with_metadata.into_iter().for_each(|metadata| _ = writer.push(metadata));
    writer.finish(objects.len(), slots.len())
}

/// One page of records: each a name with what is known of it, and with its metadata or without.
struct Page<'a> {
    records: Vec<(&'a [u8], Option<ObjectView<'a>>)>,
    with_metadata: bool,
    ends_with_broker: bool,
    bytes: usize,
}

impl<'a> Page<'a> {
    fn new(with_metadata: bool, ends_with_broker: bool) -> Self {
        let bytes = size_of::<Header>() + size_of::<ObjectPage>();
        Page { records: Vec::new(), with_metadata, ends_with_broker, bytes }
    }

    /// Puts a record in if there is room for it.
    fn take(&mut self, name: &'a [u8], view: Option<ObjectView<'a>>) -> bool {
        let metadata =
            view.map_or(0, |it| if self.with_metadata { it.record.metadata.len() } else { 0 });
        let bytes = self.bytes + size_of::<ObjectRecord>() + name.len() + metadata;
        if self.records.len() == MAX_BATCH || bytes > MAX_OBJECT_MESSAGE_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.records.push((name, view));
        true
    }

    fn write(self, writer: &mut Writer, request: RequestId, now: Now, is_done: bool) -> &[u8] {
        let head = ObjectPage { done: u32::from(is_done).into(), reserved: 0.into() };
        writer.start(Kind::ObjectRecords, request.0).push(&head);
        for (name, view) in &self.records {
            let metadata = match view {
                Some(view) if self.with_metadata => &*view.record.metadata,
                _ => &[],
            };
            let ends = self.ends_with_broker;
            let unknown = || ObjectRecord { name_len: length(name), ..ObjectRecord::new_zeroed() };
            let record = view.map_or_else(unknown, |view| object_record(name, &view, now, ends));
            let metadata_here = length_of_metadata(metadata).into();
            writer.push(&ObjectRecord { metadata_here, ..record }).push(*name).push(metadata);
        }
        writer.finish(self.records.len(), 0)
    }
}

fn length(name: &[u8]) -> u8 {
    u8::try_from(name.len()).expect("at most 255")
}

fn length_of_metadata(metadata: &[u8]) -> u16 {
    u16::try_from(metadata.len()).expect("at most 4096")
}

/// What is known of an object, without its metadata; `ends_with_broker` as for [`write_created`].
pub(crate) fn object_record(
    name: &[u8],
    view: &ObjectView<'_>,
    now: Now,
    ends_with_broker: bool,
) -> ObjectRecord {
    let ObjectView { record, group, of, .. } = view;
    let kind = of.traits.kind();
    let flags = [
        (view.is_kept, record_flags::KEPT),
        (view.is_kept && ends_with_broker, record_flags::ENDS_WITH_BROKER),
        (view.is_of_job(), record_flags::OF_JOB),
        (group.pin, record_flags::PINNED),
        (group.evictable, record_flags::EVICTABLE),
        (kind != MemoryKind::Memfd, record_flags::COOPERATIVE),
        (view.is_creator_gone, record_flags::CREATOR_GONE),
    ];
    let flags = flags.iter().filter(|(has, _)| *has).fold(0, |all, (_, flag)| all | flag);
    let left_us = view.until.map_or(u64::MAX, |until| until.0.saturating_sub(now.0));
    ObjectRecord {
        version: group.version().into(),
        offset: record.offset.into(),
        size_bytes: record.size_bytes.into(),
        group: view.id.0.into(),
        group_bytes: group.size_bytes.into(),
        age_ms: (now.0.saturating_sub(group.since.0) / 1000).into(),
        ttl_left_ms: if view.until.is_some() { left_us / 1000 } else { u64::MAX }.into(),
        slot: view.allocation.slot.into(),
        generation: view.allocation.generation.into(),
        group_names: group.names.into(),
        leases: u32::try_from(of.leases.len()).unwrap_or(u32::MAX).into(),
        creator_pid: group.creator_pid.into(),
        metadata_len: length_of_metadata(&record.metadata).into(),
        metadata_here: 0.into(),
        state: view.state as u8,
        flags,
        kind: kind as u8,
        name_len: length(name),
        reserved: [0.into(); 3],
    }
}

/// The answer to a list; `ends_with_broker` as for [`write_created`]. When many names in a row have
/// ended and are still to be swept, the page ends with one of them, of the state unknown: a name to
/// go on behind.
///
/// # Errors
/// As [`Core::names_for`].
pub fn write_list<'w>(
    writer: &'w mut Writer,
    core: &Core,
    client: ClientId,
    (request, now, ends_with_broker): (RequestId, Now, bool),
    (of_job, prefix, after): (bool, &[u8], &[u8]),
) -> Result<&'w [u8], Status> {
    let mut page = Page::new(false, ends_with_broker);
    let mut is_done = true;
    let mut ended = None;
    for (looks, (name, view)) in core.names_for(client, of_job, prefix, after)?.enumerate() {
        if looks == NAMES_PER_PAGE || (view.is_some() && !page.take(name, view)) {
            is_done = false;
            break;
        }
        ended = if view.is_none() { Some(name) } else { None };
    }
    if let (false, Some(name)) = (is_done, ended) {
        page.take(name, None);
    }
    Ok(page.write(writer, request, now, is_done))
}

/// The answer to a stat; `ends_with_broker` as for [`write_created`]. Of as many names as it has
/// room for.
///
/// # Errors
/// As [`Core::names_for`].
pub fn write_stat<'w>(
    writer: &'w mut Writer,
    core: &Core,
    client: ClientId,
    (request, now, ends_with_broker): (RequestId, Now, bool),
    (of_job, names): (bool, &[&[u8]]),
) -> Result<&'w [u8], Status> {
    let mut page = Page::new(true, ends_with_broker);
    let mut is_done = true;
    for name in names {
        // The shortest of all names that begin with it.
        let first = core.names_for(client, of_job, name, b"")?.next();
        let view = first.filter(|(found, _)| found == name).and_then(|(_, view)| view);
        let view = view.filter(|view| view.state != ObjectState::Unknown);
        if !page.take(name, view) {
            is_done = false;
            break;
        }
    }
    Ok(page.write(writer, request, now, is_done))
}
