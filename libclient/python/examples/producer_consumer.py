"""A producer and consumers that share a numpy array: no copy, no fd, no server to install.

    python producer_consumer.py            # starts a broker of its own and two consumers
"""

import multiprocessing

import numpy

import fdbroker


def consume(socket, messages, results):
    """Another process: the array of the handle, and the sum of its part."""
    with fdbroker.connect(socket) as broker:
        handle, shape, dtype, rows = messages.get()
        with broker.open(handle, shape, dtype, writable=True) as shared:
            array = shared.numpy()
            results.put(float(array[rows].sum()))
            array[rows] *= 2


def main():
    context = multiprocessing.get_context("spawn")
    messages, results = context.Queue(), context.Queue()
    with fdbroker.private_broker(max_fds=64) as broker:
        made = broker.array(numpy.arange(1_000_000, dtype="float64").reshape(1000, 1000))
        before = made.numpy().sum()
        consumers = [context.Process(target=consume, args=(broker.socket, messages, results)) for _ in range(2)]
        for consumer, rows in zip(consumers, (slice(0, 500), slice(500, 1000))):
            consumer.start()
            messages.put((made.handle, made.shape, made.dtype, rows))
        total = sum(results.get(timeout=60) for _ in consumers)
        for consumer in consumers:
            consumer.join()
        assert total == before and made.numpy().sum() == 2 * before
        print(f"two processes summed {total:,.0f} and doubled it in place")


if __name__ == "__main__":
    main()
