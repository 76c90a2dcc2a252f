from tests.admin.conftest import long_up, places  # noqa: F401  (fixtures for all tests here)
