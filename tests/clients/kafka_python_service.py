"""What kafka-python's fixtures import and its source distribution leaves out (`test/service.py`): how a
broker is started. Ours runs already; nothing here starts or stops it."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def start(self):
        pass

    def stop(self):
        pass


class SpawnedService:
    def __init__(self, *_args, **_how):
        raise RuntimeError("this suite runs against a broker that runs already (KAFKA_URI)")
