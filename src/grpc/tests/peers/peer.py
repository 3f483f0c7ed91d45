"""The other side of grpcio.rs: `peer.py client|server SOCKET`."""

import sys
import threading
import time
from concurrent import futures

import grpc

role, address = sys.argv[1], "unix:" + sys.argv[2]
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def text(value):
    """A message whose field 1 is the value."""
    length, out = len(value), b"\x0a"
    while length >= 0x80:
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return out + bytes([length]) + value if value else b""


def number(value):
    """A message whose field 2 is the value, below 128."""
    return b"\x10" + bytes([value])


def client():
    # No default authority: the server is told the escaped path of the socket, as plugins do it.
    channel = grpc.insecure_channel(address, LARGE)
    once = channel.unary_unary("/test.Echo/Once")
    assert once(text(b"a"), timeout=30) == text(b"a")

    def many():
        for size in [10, 200_000] * 30:
            message = text(b"y" * size)
            metadata = [("x-long", "v" * (size % 777))]
            assert once(message, timeout=60, metadata=metadata) == message

    threads = [threading.Thread(target=many) for _ in range(16)]
    failed = []
    threading.excepthook = failed.append
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0].exc_value
    large = text(b"z" * (15 << 20))
    assert once(large, timeout=60) == large

    def code(path, message=b"", **words):
        try:
            channel.unary_unary(path)(message, **words)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return None, None

    assert code("/a.B/C")[0] == grpc.StatusCode.UNIMPLEMENTED
    assert code("/test.Echo/Refused") == (grpc.StatusCode.NOT_FOUND, 'no "pod" of 100 %, né\n')
    assert code("/test.Echo/Never", timeout=0.1)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    too_large = code("/test.Echo/Once", text(b"z" * (17 << 20)))[0]
    assert too_large == grpc.StatusCode.RESOURCE_EXHAUSTED, too_large
    answers = channel.unary_stream("/test.Echo/Many")(text(b"b") + number(100))
    assert [answer[:3] for answer in answers] == [text(b"b")] * 100
    sent = [text(b"c" * size) for size in range(0, 40_000, 1000)]
    assert list(channel.stream_stream("/test.Echo/Each")(iter(sent))) == sent
    # Given up in the middle.
    answers = channel.unary_stream("/test.Echo/Many")(text(b"d" * 1000) + number(127))
    next(answers)
    answers.cancel()
    assert once(text(b"e"), timeout=30) == text(b"e")


class Echo(grpc.GenericRpcHandler):
    def service(self, call):
        return {
            "/test.Echo/Once": grpc.unary_unary_rpc_method_handler(self.once),
            "/test.Echo/Refused": grpc.unary_unary_rpc_method_handler(self.refused),
            "/test.Echo/Never": grpc.unary_unary_rpc_method_handler(self.never),
            "/test.Echo/Many": grpc.unary_stream_rpc_method_handler(self.many),
        }.get(call.method)

    def once(self, message, context):
        assert dict(context.invocation_metadata())["x-test"] == "value"
        assert 30 < context.time_remaining() <= 60
        return message

    def refused(self, message, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "100 % né\n")

    def never(self, message, context):
        while context.is_active():
            time.sleep(0.01)

    def many(self, message, context):
        for _ in range(5000):
            yield message


def server():
    host = grpc.server(futures.ThreadPoolExecutor(4), [Echo()], options=LARGE)
    host.add_insecure_port(address)
    host.start()
    host.wait_for_termination()


{"client": client, "server": server}[role]()
