from tests.models.cpu.conftest import compiled_here  # noqa: F401
