//! dma-bufs of vgem, the one exporter without hardware that Debian 12's kernel has. Must never be
//! taken for a device of a GPU.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct drm_mode_create_dumb` of drm/drm_mode.h.
#[repr(C)]
#[derive(Default)]
struct CreateDumb {
    height: u32,
    width: u32,
    bpp: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

/// `struct drm_prime_handle` of drm/drm.h.
#[repr(C)]
struct PrimeHandle {
    handle: u32,
    flags: u32,
    fd: i32,
}

/// `DRM_IOCTL_MODE_CREATE_DUMB` of drm/drm.h: `_IOWR('d', 0xb2, struct drm_mode_create_dumb)`.
const CREATE_DUMB: libc::Ioctl = 0xc020_64b2;
/// `DRM_IOCTL_PRIME_HANDLE_TO_FD` of drm/drm.h: `_IOWR('d', 0x2d, struct drm_prime_handle)`.
const PRIME_HANDLE_TO_FD: libc::Ioctl = 0xc00c_642d;

/// The device, open.
#[derive(Debug)]
pub struct Vgem(File);

impl Vgem {
    pub fn open() -> Vgem {
        let path = "/dev/dri/card0";
        Vgem(File::options().read(true).write(true).open(path).expect("the module vgem"))
    }

    /// A new buffer of so many bytes, which are whole pages.
    pub fn dmabuf(&self, bytes: usize) -> OwnedFd {
        let bytes = u32::try_from(bytes).expect("small");
        let mut dumb = CreateDumb { height: 1, width: bytes / 4, bpp: 32, ..CreateDumb::default() };
        // SAFETY: the request reads and writes one `drm_mode_create_dumb` through the pointer,
        // which is valid.
        let failed = unsafe { libc::ioctl(self.0.as_raw_fd(), CREATE_DUMB, &raw mut dumb) };
        assert_eq!(failed, 0, "CREATE_DUMB: {}", std::io::Error::last_os_error());
        assert_eq!(dumb.size, u64::from(bytes));
        let flags = (libc::O_CLOEXEC | libc::O_RDWR).cast_unsigned();
        let mut prime = PrimeHandle { handle: dumb.handle, flags, fd: -1 };
        // SAFETY: as above, of one `drm_prime_handle`.
        let failed = unsafe { libc::ioctl(self.0.as_raw_fd(), PRIME_HANDLE_TO_FD, &raw mut prime) };
        assert_eq!(failed, 0, "PRIME_HANDLE_TO_FD: {}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just made this fd for us.
        unsafe { OwnedFd::from_raw_fd(prime.fd) }
    }
}
