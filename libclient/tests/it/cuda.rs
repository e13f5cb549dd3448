//! The CUDA backend with a scripted broker and a stand-in for the driver: exports, messages,
//! mappings, releases, and the errors where a part is missing. Tests that need a GPU are in
//! tests/gpu.

use crate::support::stub::{Stub, under_stub};
use crate::support::*;
use fdbroker_client::cuda::{
    CudaBuffer, CudaImport, CudaMemory, Device, LinearMemory, export_dma_buf, opener,
};
use fdbroker_client::{
    Access, CacheSettings, Client, ErrorCode, Grant, ImportCache, MemoryKind, Share, backend,
};
use fdbroker_protocol::Kind;
use fdbroker_protocol::message::register_flags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;

/// Bytes asked for, and the size that a device rounds them to.
const BYTES: usize = 100_000;

fn device() -> Device {
    Device::open(0).unwrap()
}

/// A pattern that differs from page to page.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed) >> 11) as u8;
    (0..len as u64).map(byte).collect()
}

fn read_all(memory: &CudaMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The number of this process's open fds of stand-in device memory.
fn open_exports() -> usize {
    let dir = std::env::var("FDBROKER_CUDA_STUB_DIR").unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(&dir)).count()
}

/// Registers a buffer at slot 1; answers it with the fd that the broker got.
fn register(client: &Client, peer: &Peer, buffer: &CudaBuffer) -> OwnedFd {
    thread::scope(|scope| {
        let call = scope.spawn(|| buffer.register(soon()).unwrap());
        let mut request = peer.recv_kind(Kind::Register);
        peer.registered(&request, 8, 1);
        assert_eq!(call.join().unwrap(), handle(1));
        assert!(client.is_connected());
        request.fds.pop().unwrap()
    })
}

/// A grant of `fd` as CUDA memory of `bytes`.
fn grant(client: &Client, peer: &mut Peer, fd: impl AsFd, bytes: u64) -> Grant {
    grant_of(client, peer, MemoryKind::CudaVmm, fd, bytes)
}

fn grant_of(
    client: &Client,
    peer: &mut Peer,
    kind: MemoryKind,
    fd: impl AsFd,
    bytes: u64,
) -> Grant {
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::GrantOf(kind, fd.as_fd(), bytes)]);
        call.join().unwrap()
    })
}

#[test]
fn open_when_no_library_then_not_supported_and_named() {
    let name = "open_when_no_library_then_not_supported_and_named";
    under_stub(name, Stub::NoLibrary, &[], || {
        let error = Device::open(0).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        assert_eq!(Device::count().unwrap_err(), error);
        assert_eq!(backend::by_name("cuda").unwrap().available().unwrap_err(), error);
    });
}

#[test]
fn open_when_a_symbol_is_missing_then_not_supported_and_named() {
    let name = "open_when_a_symbol_is_missing_then_not_supported_and_named";
    under_stub(name, Stub::WithoutExport, &[], || {
        let error = Device::open(0).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("cuMemExportToShareableHandle"), "{error}");
    });
}

#[test]
fn open_when_no_device_then_not_supported_in_the_drivers_words() {
    let name = "open_when_no_device_then_not_supported_in_the_drivers_words";
    under_stub(name, Stub::Whole, &[("FDBROKER_CUDA_STUB_NO_DEVICE", "1")], || {
        let error = backend::by_name("cuda").unwrap().available().unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE (100)"), "{error}");
    });
}

#[test]
fn open_when_ordinal_too_high_then_not_supported_and_says_how_many_there_are() {
    let name = "open_when_ordinal_too_high_then_not_supported_and_says_how_many_there_are";
    under_stub(name, Stub::Whole, &[], || {
        backend::by_name("cuda").unwrap().available().unwrap();
        let error = Device::open(1).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("shows 1"), "{error}");
        assert!(device().name().contains("stub"), "the stub says what it is");
    });
}

#[test]
fn new_when_registered_then_the_deposit_is_true_and_no_fd_is_kept() {
    let name = "new_when_registered_then_the_deposit_is_true_and_no_fd_is_kept";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, peer) = broker.client();
        let buffer = thread::scope(|scope| {
            let new = || CudaBuffer::new(&client, &device, BYTES, Share::Gid, soon()).unwrap();
            let call = scope.spawn(new);
            let request = peer.recv();
            let (_, items) = request.register();
            peer.registered(&request, 8, 1);
            let buffer = call.join().unwrap();
            let span = BYTES.next_multiple_of(device.granularity());
            assert_eq!(buffer.len(), span);
            assert_eq!(items[0].facts.kind, MemoryKind::CudaVmm as u8);
            assert_eq!(items[0].share, Share::Gid as u8);
            assert_eq!(items[0].flags, register_flags::RECALLABLE);
            assert_eq!(items[0].facts.size_bytes.get(), span as u64);
            assert_eq!(items[0].base.get(), buffer.device_ptr());
            assert_eq!(items[0].facts.owner_allocation_id.get(), buffer.owner_allocation_id());
            assert_eq!(items[0].facts.fd_offset.get(), 0);
            // The request carries one; the library closed its own after sending.
            assert_eq!(open_exports(), 1);
            buffer
        });
        assert_eq!(open_exports(), 0);
        assert_eq!(buffer.handle(), Some(handle(1)));
        assert_eq!(buffer.register(soon()).unwrap(), handle(1), "nothing is sent again");
        drop(buffer);
        assert_eq!(peer.recv().unregister(), [handle(1).id()]);
    });
}

#[test]
fn drop_when_unregistered_and_registered_then_the_device_memory_is_given_back() {
    let name = "drop_when_unregistered_and_registered_then_the_device_memory_is_given_back";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, peer) = broker.client();
        let files = || std::fs::read_dir(std::env::var("FDBROKER_CUDA_STUB_DIR").unwrap());
        let buffer = CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap();
        assert_eq!(files().unwrap().count(), 1);
        drop(buffer);
        assert_eq!(files().unwrap().count(), 0);
        let buffer = CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap();
        drop(register(&client, &peer, &buffer));
        drop(buffer);
        assert_eq!(files().unwrap().count(), 0);
        // Only for the one that is registered.
        assert_eq!(peer.recv().unregister().len(), 1);
    });
}

#[test]
fn recall_when_evicted_then_exported_again_with_its_data_and_freed_is_stale() {
    let name = "recall_when_evicted_then_exported_again_with_its_data_and_freed_is_stale";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let buffer = CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap();
        let bytes = pattern(1, buffer.len());
        buffer.memory().write_at(0, &bytes).unwrap();
        // The broker evicts it: closes its fd.
        drop(register(&client, &peer, &buffer));
        let (id, base) = (buffer.id().unwrap(), buffer.device_ptr());
        let owner_id = buffer.owner_allocation_id();
        peer.recall(&[recall_item(id, owner_id + 1, base)]);
        assert_eq!(peer.recv_event().supply()[0].code.get(), ErrorCode::Stale as u16);
        peer.recall(&[recall_item(id, owner_id, base)]);
        let supplied = peer.recv_event();
        let items = supplied.supply();
        assert_eq!(items[0].code.get(), 0);
        assert_eq!(items[0].facts.size_bytes.get(), buffer.len() as u64);
        assert_eq!(supplied.fds.len(), 1);
        let granted = grant(&client, &mut peer, &supplied.fds[0], items[0].facts.size_bytes.get());
        let import = CudaImport::new(&device, granted, Access::Read).unwrap();
        assert_eq!(read_all(import.memory()), bytes);

        drop(buffer);
        peer.recall(&[recall_item(id, owner_id, base)]);
        assert_ne!(peer.recv_event().supply()[0].code.get(), 0, "freed memory is not supplied");
    });
}

#[test]
fn recall_when_the_address_is_used_again_then_stale() {
    let name = "recall_when_the_address_is_used_again_then_stale";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        let base = memory.device_ptr();
        let first = CudaBuffer::of(&client, &device, memory, Share::Uid).unwrap();
        let first_id = first.owner_allocation_id();
        drop(register(&client, &peer, &first));
        let id = first.id().unwrap();
        drop(first);
        let memory = CudaMemory::new_at(&device, BYTES, base).unwrap();
        assert_eq!(memory.device_ptr(), base, "the stub honours a hint");
        let second = CudaBuffer::of(&client, &device, memory, Share::Uid).unwrap();
        assert_ne!(second.owner_allocation_id(), first_id);
        peer.recall(&[recall_item(id, first_id, base)]);
        let supplied = peer.recv_event();
        assert_eq!(supplied.supply()[0].code.get(), ErrorCode::Stale as u16);
        assert!(supplied.fds.is_empty());
    });
}

#[test]
fn register_many_when_the_window_is_small_then_no_more_fds_at_once_and_all_are_registered() {
    let name =
        "register_many_when_the_window_is_small_then_no_more_fds_at_once_and_all_are_registered";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let terms = Terms { credits: 50, ..Terms::default() };
        let (client, peer) = broker.client_with(Client::builder().own_fds(3), terms);
        let new = |_| CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap();
        let buffers: Vec<CudaBuffer> = (0..7).map(new).collect();
        thread::scope(|scope| {
            // The first handle stands there twice.
            let twice = buffers.iter().chain([&buffers[0]]);
            let call = scope.spawn(|| CudaBuffer::register_many(twice, soon()).unwrap());
            let mut registered = 0;
            while registered < 7 {
                let request = peer.recv_kind(Kind::Register);
                assert!(request.count <= 2, "{} exports at once", request.count);
                peer.registered(&request, 50, registered as u32);
                registered += request.count;
            }
            let handles: Vec<_> = call.join().unwrap().into_iter().map(Result::unwrap).collect();
            let expected = (0..7).chain([0]).map(handle).collect::<Vec<_>>();
            assert_eq!(handles, expected);
        });
        peer.assert_silent();
    });
}

#[test]
fn import_when_granted_then_mapped_without_fd_and_given_back_on_drop() {
    let name = "import_when_granted_then_mapped_without_fd_and_given_back_on_drop";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        let bytes = pattern(2, memory.len());
        memory.write_at(0, &bytes).unwrap();
        let fd = memory.export().unwrap();
        let granted = grant(&client, &mut peer, &fd, memory.len() as u64);
        drop(fd);
        assert_eq!(open_exports(), 1);
        let import = CudaImport::new(&device, granted, Access::ReadWrite).unwrap();
        assert_eq!(open_exports(), 0);
        assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [1]);
        assert_eq!(import.len(), memory.len());
        assert_ne!(import.device_ptr(), memory.device_ptr());
        assert_eq!(read_all(import.memory()), bytes);
        // It is the same memory, not a copy, and it outlives its owner.
        import.memory().write_at(7, b"mark").unwrap();
        let mut mark = [0; 4];
        memory.read_at(7, &mut mark).unwrap();
        assert_eq!(&mark, b"mark");
        drop(memory);
        import.memory().read_at(7, &mut mark).unwrap();
        assert_eq!(&mark, b"mark");
        drop(import);
        assert_eq!(peer.recv_kind(Kind::Release).leases(), [1]);
    });
}

#[test]
fn import_when_it_cannot_be_then_says_why_and_the_grant_is_given_back() {
    let name = "import_when_it_cannot_be_then_says_why_and_the_grant_is_given_back";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        let (fd, size) = (memory.export().unwrap(), memory.len() as u64);
        let mut code = |kind, fd: &OwnedFd, size| {
            let granted = grant_of(&client, &mut peer, kind, fd, size);
            let error = CudaImport::new(&device, granted, Access::Read).unwrap_err();
            assert_eq!(peer.recv_kind(Kind::Release).leases().len(), 1);
            error.code
        };
        assert_eq!(code(MemoryKind::DmaBuf, &fd, size), ErrorCode::NotSupported);
        assert_eq!(code(MemoryKind::CudaVmm, &self::memory(b""), size), ErrorCode::UnsupportedFd);
        assert_eq!(code(MemoryKind::CudaVmm, &fd, u64::MAX), ErrorCode::BadHandle);
        // The owner claims more bytes than the memory has.
        assert_eq!(code(MemoryKind::CudaVmm, &fd, 2 * size), ErrorCode::Internal);
        drop(fd);
        assert_eq!(open_exports(), 0);
    });
}

#[test]
fn memory_when_out_of_bounds_or_for_reading_then_refused() {
    let name = "memory_when_out_of_bounds_or_for_reading_then_refused";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        memory.fill(0, memory.len(), 0x5a).unwrap();
        assert!(read_all(&memory).iter().all(|byte| *byte == 0x5a));
        let code = |result: Result<(), _>| {
            let error: fdbroker_client::Error = result.unwrap_err();
            error.code
        };
        let mut two = [0; 2];
        assert_eq!(code(memory.read_at(memory.len() - 1, &mut two)), ErrorCode::BadHandle);
        assert_eq!(code(memory.write_at(memory.len(), &[1])), ErrorCode::BadHandle);
        assert_eq!(code(memory.fill(usize::MAX, 2, 0)), ErrorCode::BadHandle);
        assert_eq!(CudaMemory::new(&device, 0).unwrap_err().code, ErrorCode::BadHandle);
        assert_eq!(CudaMemory::new(&device, usize::MAX).unwrap_err().code, ErrorCode::BadHandle);

        // A claim of fewer bytes shows only these.
        let fd = memory.export().unwrap();
        let granted = grant(&client, &mut peer, &fd, 5000);
        let import = CudaImport::new(&device, granted, Access::Read).unwrap();
        assert_eq!(import.len(), 5000);
        assert_eq!(code(import.memory().read_at(4999, &mut two)), ErrorCode::BadHandle);
        assert_eq!(code(import.memory().write_at(0, &two)), ErrorCode::NotSupported);
        assert_eq!(import.memory().export().unwrap_err().code, ErrorCode::NotSupported);
    });
}

#[test]
fn write_and_fill_when_they_return_then_every_other_process_sees_it() {
    let name = "write_and_fill_when_they_return_then_every_other_process_sees_it";
    under_stub(name, Stub::Whole, &[], || {
        let memory = CudaMemory::new(&device(), BYTES).unwrap();
        // As in another process, without a call of this process's driver.
        let fd = memory.export().unwrap();
        let seen = |offset| {
            let mut bytes = [0; 4];
            nix::sys::uio::pread(&fd, &mut bytes, offset).unwrap();
            bytes
        };
        memory.write_at(8, b"here").unwrap();
        assert_eq!(&seen(8), b"here");
        memory.fill(64, 4, 0x33).unwrap();
        assert_eq!(seen(64), [0x33; 4]);
    });
}

#[test]
fn export_dma_buf_when_the_device_has_none_or_unaligned_then_refused() {
    let name = "export_dma_buf_when_the_device_has_none_or_unaligned_then_refused";
    under_stub(name, Stub::Whole, &[], || {
        let device = device();
        let memory = LinearMemory::new(&device, 1 << 20).unwrap();
        let code = |pointer, bytes| export_dma_buf(&device, pointer, bytes).unwrap_err().code;
        assert_eq!(code(memory.device_ptr(), memory.len()), ErrorCode::NotSupported);
        assert_eq!(code(memory.device_ptr() + 8, 4096), ErrorCode::BadHandle);
        assert_eq!(code(memory.device_ptr(), 100), ErrorCode::BadHandle);
        assert_eq!(code(memory.device_ptr(), 0), ErrorCode::BadHandle);
    });
}

#[test]
fn export_and_import_when_the_fd_table_is_full_then_local_fd_limit_and_nothing_is_lost() {
    let name =
        "export_and_import_when_the_fd_table_is_full_then_local_fd_limit_and_nothing_is_lost";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        let bytes = pattern(3, memory.len());
        memory.write_at(0, &bytes).unwrap();
        let fd = memory.export().unwrap();
        let granted = grant(&client, &mut peer, &fd, memory.len() as u64);

        let lowest = nix::unistd::dup(std::io::stderr()).unwrap().as_raw_fd() as u64;
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, lowest, hard).unwrap();
        assert_eq!(memory.export().unwrap_err().code, ErrorCode::LocalFdLimit);
        let refused = CudaMemory::import(&device, &granted, Access::Read).unwrap_err();
        assert_eq!(refused.code, ErrorCode::LocalFdLimit);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();

        assert!(memory.export().is_ok());
        let import = CudaImport::new(&device, granted, Access::Read).unwrap();
        assert_eq!(read_all(import.memory()), bytes);
    });
}

#[test]
fn fork_when_a_child_uses_or_drops_it_then_refused_and_the_parent_is_undisturbed() {
    let name = "fork_when_a_child_uses_or_drops_it_then_refused_and_the_parent_is_undisturbed";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, peer) = broker.client();
        let buffer = CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap();
        buffer.memory().fill(0, 9, 7).unwrap();
        let registered = register(&client, &peer, &buffer);
        // SAFETY: the child calls nothing that needs another thread, and ends by _exit.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let refused = |code| code == ErrorCode::NotSupported;
                let right = Device::open(0).is_err_and(|error| refused(error.code))
                    && buffer.memory().export().is_err_and(|error| refused(error.code));
                drop((buffer, client, device));
                // SAFETY: ends the child without handlers of the parent's.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        drop(registered);
        peer.assert_silent();
        let mut bytes = [0; 9];
        buffer.memory().read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 9]);
        assert!(buffer.memory().export().is_ok());
    });
}

#[test]
fn import_with_when_cached_then_device_memory_stays_open_in_the_cache() {
    let name = "import_with_when_cached_then_device_memory_stays_open_in_the_cache";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, mut peer) = broker.client();
        let memory = CudaMemory::new(&device, BYTES).unwrap();
        let fd = memory.export().unwrap();
        let cache = ImportCache::new(&client, CacheSettings::default());
        let import = thread::scope(|scope| {
            let call = scope.spawn(|| {
                let open = opener(&device, Access::ReadWrite);
                cache.import_with(&handle(1), Access::ReadWrite, soon(), open).unwrap()
            });
            let request = peer.recv_kind(Kind::Acquire);
            let size = memory.len() as u64;
            peer.page.set(handle(1).id());
            let granted = Answer::GrantOf(MemoryKind::CudaVmm, fd.as_fd(), size);
            peer.grant(request.id, &[granted]);
            call.join().unwrap()
        });
        drop(fd);
        assert_eq!(open_exports(), 0);
        assert_eq!(import.len(), memory.len());
        assert_eq!(import.id(), handle(1).id());
        // The library refuses to read memory that the CPU cannot read.
        assert_eq!(import.read_at(0, &mut [0]).unwrap_err().code, ErrorCode::NotSupported);
    });
}

#[test]
fn allocate_when_the_client_has_no_export_window_then_not_supported_with_remedy() {
    let name = "allocate_when_the_client_has_no_export_window_then_not_supported_with_remedy";
    under_stub(name, Stub::Whole, &[], || {
        let (broker, device) = (FakeBroker::listen(), device());
        let (client, _peer) = broker.client_with(Client::builder().own_fds(0), Terms::default());
        let error = CudaBuffer::allocate(&client, &device, BYTES, Share::Uid).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("own_fds"), "{error}");
    });
}
