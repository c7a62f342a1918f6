"""The engine and the image that the other tests here stand on."""

import time


def test_the_image_runs_python_and_the_tools(client, base_image):
    script = (
        "python -c 'import ssl, sqlite3, ctypes, pytest; print(7)' && git --version && patch -v"
    )
    begin = time.perf_counter()
    out = client.containers.run(
        base_image, ["bash", "-c", script], network_mode="none", user="1000:1000", remove=True
    ).decode()
    print(f"one run: {time.perf_counter() - begin:.2f} s")
    assert out.startswith("7\ngit version") and "GNU patch" in out


def test_a_layer_is_made_from_a_script(client, make_image):
    image = make_image("branchrt/layer:1", "cp /in/a /b; cd /; rm -r in", {"/in/a": "text"})
    read = client.containers.run(image, ["cat", "/b"], network_mode="none", remove=True)
    assert read == b"text"


def test_the_engine_has_no_network(client, base_image):
    names = client.containers.run(
        base_image, ["ls", "/sys/class/net"], network_mode="none", remove=True
    )
    assert names == b"lo\n"


def test_the_engine_comes_back_after_a_crash(engine, client):
    images = len(client.images.list())
    engine.kill()
    assert not engine.answers()
    engine.start()
    assert len(client.images.list()) == images
