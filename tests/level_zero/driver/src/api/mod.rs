//! The functions that the loader calls, by the specification's groups. Must never do more than
//! unpack, call and answer.

mod command_list;
mod command_queue;
mod context;
mod device;
mod driver;
mod event;
mod extension;
mod memory;
mod tables;
mod virtual_memory;
