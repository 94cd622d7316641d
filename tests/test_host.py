import os
import socket

import pytest

from grpo_stack import host


def test_this_host_has_memory_cpus_and_space(tmp_path):
    found = host.read([str(tmp_path / "not" / "made")])

    assert found.cpus >= 1
    assert 0 < found.memory_available_bytes <= found.memory_total_bytes
    assert found.folders[0].writable is True
    assert found.folders[0].free_bytes > 0


def test_a_folder_below_a_file_is_not_writable(tmp_path):
    (tmp_path / "file").touch()

    assert host.read([str(tmp_path / "file" / "outputs")]).folders[0].writable is False


def test_a_port_that_something_listens_on_is_in_use_and_a_free_one_is_not():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert [entry.port for entry in host.read(ports=[port]).ports_in_use] == [port]
    assert host.read(ports=[port]).ports_in_use == ()


def test_a_model_folder_is_looked_at_as_the_containers_user(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.touch(mode=0o600)
    weights.chmod(0o600)

    others = host.model_folder(str(tmp_path), uid=os.getuid() + 1)
    owner = host.model_folder(str(tmp_path), uid=os.getuid())

    assert (others.exists, others.has_config, others.unreadable) == (True, True, ("model.safetensors",))
    assert owner.unreadable == ()
    assert not host.model_folder(str(tmp_path / "none"), uid=0).exists


def test_proxies_are_read_without_passwords():
    environment = {
        "HTTPS_PROXY": "http://user:secret@proxy:3128",
        "https_proxy": "user:sec@ret@proxy:3128",
        "NO_PROXY": "localhost",
        "HTTP_PROXY": "",
        "PATH": "/bin",
    }

    assert host.read(environment=environment).proxies == (
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("https_proxy", "proxy:3128"),
        ("NO_PROXY", "localhost"),
    )


def test_a_token_file_is_looked_at_as_the_containers_user(tmp_path):
    file = tmp_path / "token"
    file.write_text("hf_x")
    file.chmod(0o600)

    others, owner = (host.token_file(str(file), os.getuid() + more) for more in (1, 0))

    assert (others.exists, others.readable, owner.readable, owner.empty) == (True, False, True, False)
    file.write_text("")
    assert host.token_file(str(file), os.getuid()).empty
    assert not host.token_file(str(tmp_path), os.getuid()).exists


def test_links_that_lead_out_of_a_model_folder_are_of_no_use_to_a_container(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "c", tmp_path / "blobs"
    for folder in (snapshot / "sub", blobs):
        folder.mkdir(parents=True)
    (blobs / "b").touch()
    for name, target in (
        ("config.json", "../../blobs/b"),
        ("absolute.json", str(snapshot / "real.json")),
        ("beside.json", "real.json"),
        ("below.json", "sub/../real.json"),
    ):
        (snapshot / name).symlink_to(target)
    (snapshot / "real.json").touch()
    (tmp_path / "way").symlink_to(snapshot)

    found = host.model_folder(str(snapshot), os.getuid())

    assert found.leading_out == ("absolute.json", "config.json")
    assert host.model_folder(str(tmp_path / "way"), os.getuid()).leading_out == found.leading_out
    assert host.model_folder(str(snapshot), os.getuid(), mounted=False).leading_out == ()


@pytest.mark.parametrize("mode", [0o700, 0o744, 0o000])
def test_a_model_folder_that_the_containers_user_cannot_enter_is_closed(mode, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir(mode=mode)
    folder.chmod(mode)

    found = host.model_folder(str(folder), os.getuid() + 1)

    assert (found.exists, found.closed) == (True, True)


@pytest.mark.parametrize("path", ["/" + "x" * 300, "~nobody-of-that-name/x", "a\0b"])
def test_a_name_that_no_file_can_have_is_a_file_that_is_not_there(path):
    assert host.read([path]).folders[0].free_bytes is not None
    assert not host.model_folder(path, 1).exists
    assert not host.token_file(path, 1).exists
