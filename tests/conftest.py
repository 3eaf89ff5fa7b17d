"""What several test files share: one built study."""

import built
import pytest


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Facts of a small study, and the folder of its tables and figures."""
    folder = tmp_path_factory.mktemp("study")
    return built.build(folder), folder
