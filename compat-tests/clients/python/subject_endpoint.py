"""A pytest plugin: the clients' tests, against the server that PYTHON_ETCD_HTTP_URL names.

Some tests of etcd3 and aetcd make clients without an address, which means port 2379. Here that default is
the server under test. And etcd3's tests with generated keys start an etcdctl for each of a hundred keys:
fewer do.
"""

import os
from urllib.parse import urlparse

EXAMPLES = 15


def _with_default_address(function, address, before_address=0):
    def call(*arguments, **options):
        if len(arguments) <= before_address:
            options.setdefault("host", address.hostname)
            options.setdefault("port", address.port)
        return function(*arguments, **options)

    return call


def pytest_configure(config):
    address = urlparse(os.environ["PYTHON_ETCD_HTTP_URL"])
    if os.environ["CLIENT"] == "etcd3":
        import etcd3
        import hypothesis

        etcd3.client = _with_default_address(etcd3.client, address)
        hypothesis.settings.register_profile("short", max_examples=EXAMPLES, deadline=None)
        hypothesis.settings.load_profile("short")
    else:
        import aetcd

        aetcd.Client.__init__ = _with_default_address(aetcd.Client.__init__, address, before_address=1)
