"""Scripts that run in other environments' interpreters and share nothing with the study but their command line.

`lib.engines.build` runs those that make an artifact: `python SCRIPT --out FOLDER [--source FOLDER] [--scheme NAME]`;
`lib.engines.llama_cpp` runs the one that serves, `lib.engines.trtllm_serve` those that quantize and that stand before
replicas.
"""
