# The study as a table of contents: config -> artifacts -> records -> tables -> figures -> article.
# Two commands do everything: `make report` and `make test`. `make help` lists the rest.

PROFILE ?= cpu
DEPTH ?= default
DEEP := $(if $(filter-out default,$(DEPTH)),-$(DEPTH))
STUDY := $(PROFILE)$(DEEP)
PYTHON ?= python3

# Names become parts of commands: letters, digits, dots, dashes and underscores alone.
CHARACTERS := a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z \
              0 1 2 3 4 5 6 7 8 9 . - _
beyond = $(if $(1),$(call beyond,$(wordlist 2,99,$(1)),$(subst $(firstword $(1)),,$(2))),$(2))
ODD := $(strip $(call beyond,$(CHARACTERS),$(PROFILE)$(DEPTH)$(LAUNCH)))
ifneq ($(ODD),)
$(error A profile, depth or launch has a name with other characters than letters, digits, dots, dashes and underscores)
endif

# What the rules below need to know about the profile: one launch per YAML file beside study.yaml.
CONFIGS := $(wildcard config/$(PROFILE)/*.yaml)
ifneq ($(strip $(call beyond,$(CHARACTERS) /,$(CONFIGS))),)
$(error A file in config/$(PROFILE) has a name with other characters than letters, digits, dots, dashes and underscores)
endif
# The light version leaves out what says `depth: full`.
DEEP_ONLY := $(if $(filter default canary,$(DEPTH)),$(shell grep -l '^depth: full' $(CONFIGS) /dev/null))
BY_NAME := $(filter-out study,$(basename $(notdir $(filter-out $(DEEP_ONLY),$(CONFIGS)))))
# They run in the order that study.yaml states, the rest by name.
ORDER := $(shell sed -n '/^order:/,/^[^ ]/s/^  - \([^ ]*\).*/\1/p' config/$(PROFILE)/study.yaml 2>/dev/null)
LAUNCHES := $(filter $(BY_NAME),$(ORDER)) $(filter-out $(ORDER),$(BY_NAME))

B := build/$(STUDY)
TABLES := report/tables/$(STUDY)
PAGE := report/$(STUDY)/index.html
# Quality is scored where the profile states what on; it needs the weights, and no timing record.
QUALITY := $(if $(filter-out rehearsal,$(DEPTH)),$(if $(shell grep -l '^quality:' config/$(PROFILE)/study.yaml 2>/dev/null),$(B)/04_quality.ipynb))
# Profiles that are taken with this one, at its depth, and told in its article: beside: [one, another]
BESIDE := $(if $(filter default full,$(DEPTH)),$(shell sed -n '/^beside: \[/{s/^[^[]*\[//;s/\].*//;s/,/ /g;p}' config/$(PROFILE)/study.yaml 2>/dev/null))
ifneq ($(strip $(call beyond,$(CHARACTERS),$(BESIDE))),)
$(error config/$(PROFILE)/study.yaml: beside has a name with other characters than letters, digits, dots, dashes and underscores)
endif
MEASURED := $(LAUNCHES:%=$(B)/02_measure-%.ipynb) $(QUALITY)

# The study's own interpreter: an activated conda environment that holds the locked versions, else .venvs/study.
STUDY_PYTHON = $(shell $(PYTHON) lib/environments.py --which study)
EXECUTE = $(STUDY_PYTHON) -m lib.execute
PARAMETERS = profile=$(PROFILE) depth=$(DEPTH)

# A notebook's kernel has no terminal; this one shows its progress. In a log, one plain line per stage.
export STUDY_TERMINAL ?= $(if $(CLUSTER),none,$(shell tty 2>/dev/null || echo none))
export PYTHONPATH := $(CURDIR)

# CLUSTER=slurm: what needs the engines runs as jobs, each on a whole node of its own; Slurm decides when.
ON_NODE = $(if $(filter slurm,$(CLUSTER)),$(STUDY_PYTHON) -m lib.measure.slurm $(PROFILE) $(DEPTH) $(1) $(2) --)
CALIBRATION := records/$(STUDY)/calibration.json
AT_ONCE = $(if $(filter slurm,$(CLUSTER)),$(words $(LAUNCHES)),1)
export STUDY_MAX_COST := $(MAX_COST)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help report taken measured article plan lab test lint remeasure predict calibrate crosscheck harness picture shard-probe clean env check \
        torture audit rehearse canary doctor publish verify-site compare

##@ The study

# One computer never measures two things at once (a lock keeps it so under make -j too); reading may use both cores.
report: env  ## run what is missing of the study and render the article: report/index.html
	@$(STUDY_PYTHON) -m lib.engines.check $(PROFILE) $(DEPTH) $(if $(CLUSTER),,here)
	@status=0; \
	$(MAKE) --no-print-directory taken || status=$$?; \
	for other in $(BESIDE); do $(MAKE) --no-print-directory taken PROFILE=$$other || status=$$?; done; \
	[ -e $(CALIBRATION) ] || $(MAKE) --no-print-directory $(CALIBRATION) || status=$$?; \
	$(MAKE) --no-print-directory -j2 article || status=$$?; \
	exit $$status

# What has no record is measured; a record that was removed, or could not be taken where there is a cluster, is missing.
taken:
	@for launch in $(LAUNCHES); do outcome=records/$(STUDY)/$$launch.outcome.json; \
	if [ ! -e $$outcome ] || { grep -q '"measured"' $$outcome && [ ! -e records/$(STUDY)/$$launch.parquet ]; }; \
	then rm -f $(B)/02_measure-$$launch.ipynb; fi; \
	if [ -n "$(CLUSTER)" ] && grep -qs '"absent"' $$outcome; then rm -f $(B)/02_measure-$$launch.ipynb; fi; \
	[ -e records/$(STUDY)/$$launch.quality.json ] || rm -f $(QUALITY); done     # its record was removed: take it again
	@$(MAKE) --no-print-directory -j$(AT_ONCE) -k measured

measured: $(MEASURED)

article: $(PAGE)
ifeq ($(DEPTH),rehearsal)
	@echo "The rehearsal's page: $(PAGE); report/index.html is left alone"
else
	@cmp -s $(PAGE) report/index.html || { cp $(PAGE) report/.index.tmp && mv report/.index.tmp report/index.html; }
	@echo "The article: report/index.html (study $(STUDY))"
endif

plan: env check  ## print every launch, level, repeat, expected duration and disk use; run nothing
	@$(STUDY_PYTHON) -m lib.measure.plan $(PROFILE) $(DEPTH)

rehearse:  ## try the whole study out with stand-ins for its engines: make rehearse PROFILE=h100 [SPEED=10] [FAIL=launch:oom]
	@STUDY_REHEARSAL_SPEED=$(SPEED) STUDY_REHEARSAL_FAIL=$(FAIL) $(MAKE) --no-print-directory report DEPTH=rehearsal

canary: env check $(B)/canary.txt  ## ten minutes before an expensive study: its first launch at the promise's load
	@cat $(B)/canary.txt

doctor: env  ## look this computer over before money is spent on it: GPUs, links, clocks, disk, models, images, limits
	@$(STUDY_PYTHON) -m lib.engines.doctor $(PROFILE) $(DEPTH)

LAB := $(if $(wildcard $(TABLES)/facts.json),$(B)/lab/07_explore.ipynb,notebooks/00_start_here.ipynb)
lab: env $(LAB)  ## open JupyterLab: on the explorer where this profile is built, else on the first notebook
	@env -u STUDY_TERMINAL $(STUDY_PYTHON) -m jupyterlab --ip=127.0.0.1 $(LAB)

# A copy that knows its profile; what is done in it lands neither in the source nor in what is published.
$(B)/lab/07_explore.ipynb: notebooks/07_explore.ipynb
	@mkdir -p $(@D)
	@$(STUDY_PYTHON) -m papermill --prepare-only --no-progress-bar --log-level ERROR -k python3 -r profile $(PROFILE) -r depth $(DEPTH) $< $@

remeasure: env  ## put a record aside and take it again: make remeasure LAUNCH=name (or all of the profile)
	@$(STUDY_PYTHON) -m lib.measure.remeasure $(PROFILE) $(DEPTH) $(LAUNCH)
	@rm -f $(if $(LAUNCH),$(B)/02_measure-$(LAUNCH).ipynb,$(filter-out $(QUALITY),$(MEASURED)))
	@$(MAKE) --no-print-directory report

##@ Telling it

publish: env article  ## make report/site: page, PDF, figures, tables, records, checksums, and one archive (URL=https://... if known)
	@$(STUDY_PYTHON) -m lib.publish.site $(PROFILE) $(DEPTH) $(URL)

verify-site: env  ## check a site: checksums, links, every number against its facts, and in a browser (SITE=report/site)
	@$(STUDY_PYTHON) -m lib.publish.verify $(SITE)

compare: env  ## what changed between two runs beyond the noise floor: make compare A=cpu B=cpu-full (or folders of tables)
	@$(STUDY_PYTHON) -m lib.publish.compare "$(A)" "$(B)"

##@ The rules behind it

# config -> artifacts
$(B)/01_build.ipynb: notebooks/01_build.ipynb $(CONFIGS)
	@$(call ON_NODE,-,$@) $(EXECUTE) $< $@ $(PARAMETERS)

# Minutes on the node before hours: nothing is measured until the first launch has answered every request whole.
CANARY := $(if $(filter default full,$(DEPTH)),$(B)/canary.txt)
$(B)/canary.txt: $(CONFIGS) | $(B)/01_build.ipynb
	@$(call ON_NODE,-,$@) $(STUDY_PYTHON) -m lib.measure.canary $(PROFILE) $@

# config -> record. Code is no prerequisite: a record is a dated fact. The notebook leaves a record with this
# config's hash alone, so a touched or restored file costs seconds, never a measurement.
$(B)/02_measure-%.ipynb: config/$(PROFILE)/%.yaml config/$(PROFILE)/study.yaml | $(B)/01_build.ipynb $(CANARY)
	@$(call ON_NODE,$*,$@) $(EXECUTE) notebooks/02_measure.ipynb $@ $(PARAMETERS) launch=$*

# The client's own error at the planned loads; a rule of its own, so that make -n measures nothing.
$(CALIBRATION):
	@$(call ON_NODE,-,$@) $(STUDY_PYTHON) -m lib.measure.calibrate_study $(PROFILE) $(DEPTH) light

# artifacts -> quality records, one per launch; what is there already and still right is left alone
$(B)/04_quality.ipynb: notebooks/04_quality.ipynb $(CONFIGS) | $(B)/01_build.ipynb
	@$(call ON_NODE,-,$@) $(EXECUTE) $< $@ $(PARAMETERS)

# what others published, physics, predictions
READING := lib/errors.py lib/paths.py lib/config.py lib/records.py lib/metrics.py lib/stats.py
$(B)/03_physics_and_prediction.ipynb: notebooks/03_physics_and_prediction.ipynb $(wildcard data/*) $(wildcard lib/analyse/*.py)
	@$(EXECUTE) $< $@

# records -> numbers
TOLD := $(STUDY) $(BESIDE:%=%$(DEEP))
RECORDS = $(wildcard $(foreach study,$(TOLD),$(addprefix records/$(study)/,*.parquet *.outcome.json *.quality.json calibration.json)) records/crosscheck.json records/shard/*.json)
$(B)/05_tables.ipynb: notebooks/05_tables.ipynb $(RECORDS) $(CONFIGS) $(wildcard $(BESIDE:%=config/%/*.yaml)) $(wildcard data/*) $(wildcard lib/analyse/*.py) $(READING)
	@$(EXECUTE) $< $@ $(PARAMETERS)

# numbers -> pictures
NO_DRAWING := article page references pictures datatables readme browser explore explorer plots_explore
DRAWING := $(filter-out $(NO_DRAWING:%=lib/show/%.py),$(wildcard lib/show/*.py))
$(B)/06_%.ipynb: notebooks/06_%.ipynb $(B)/05_tables.ipynb $(DRAWING)
	@$(EXECUTE) $< $@ $(PARAMETERS)

# numbers, pictures -> prose
$(PAGE): report/article.md $(wildcard report/template/*) $(B)/03_physics_and_prediction.ipynb $(B)/06_figures.ipynb $(B)/06_figures_h100.ipynb $(wildcard lib/show/*.py)
	@$(STUDY_PYTHON) -m lib.show.article $(PROFILE) $(DEPTH)

env:  ## make the study's environment, and an engine's: make env ENGINE=vllm-0.6.2
	@for name in study $(ENGINE); do $(PYTHON) lib/environments.py $$name || exit; done

# A mistake in the config is told before anything runs.
check: env
	@$(STUDY_PYTHON) -m lib.engines.check $(PROFILE) $(DEPTH)

##@ Keeping it true

calibrate: env  ## measure the load client's own error at this profile's loads and beyond, against a server whose timings are known
	@$(STUDY_PYTHON) -m lib.measure.calibrate_study $(PROFILE) $(DEPTH)

crosscheck: env  ## vLLM's and NVIDIA's load tools beside ours: on one live server, and against the truth
	@$(STUDY_PYTHON) -m lib.measure.crosscheck
	@$(STUDY_PYTHON) -m lib.analyse.crosscheck

harness: env  ## score a launch's running server by lm-evaluation-harness: make harness LAUNCH=vllm-fp32 [TASKS=arc_easy,...] [LIMIT=100]
	@$(STUDY_PYTHON) -m lib.measure.harness $(PROFILE) $(DEPTH) "$(LAUNCH)" "$(TASKS)" "$(LIMIT)"

shard-probe:  ## time one rank of Llama-3-70B on this computer's GPU: make shard-probe TORCH_PYTHON=python (one with torch)
	@$(or $(TORCH_PYTHON),$(PYTHON)) -m lib.measure.shard

picture: env  ## make this profile's headline figure the README's, with the hashes of its records
	@$(STUDY_PYTHON) -m lib.show.readme $(PROFILE) $(DEPTH)

predict:  ## re-make data/step_times.csv, predictions.csv and their errors from the kernel tables of aiconfigurator-core
	@$(PYTHON) lib/environments.py predict
	@.venvs/predict/bin/python -m lib.analyse.steptable
	@.venvs/predict/bin/python -m lib.analyse.predict
	@.venvs/predict/bin/python -m lib.analyse.agreement

# One worker more than there are cores: many tests wait for servers and clocks.
test: env  ## lint, types, unit tests, and the smoke profile with real engines
	@$(PYTHON) lib/environments.py test
	@.venvs/test/bin/python -m pytest -n $$(( $$(nproc) + 1 )) --dist loadfile --no-loadscope-reorder # the longest first: tests/conftest.py

torture: env  ## kill, flood and fuzz the study for hours: make torture [TRIALS=200] [SEED=1] [HOURS=8] [ONLY=kills]
	@$(PYTHON) lib/environments.py test
	@.venvs/test/bin/python -m tests.torture --trials $(or $(TRIALS),200) --seed $(or $(SEED),1) --hours $(or $(HOURS),8) $(if $(ONLY),--only $(ONLY))

# What the engines' own locks carry is told and fails nothing: their versions are what is studied (SECURITY.md).
ENGINE_LOCKS := $(wildcard envs/vllm*.txt envs/llama-cpp.txt)
OUR_LOCKS := $(filter-out $(ENGINE_LOCKS) envs/torch-%,$(wildcard envs/*.txt))
ACCEPTED = $(shell sed -n 's/^\([A-Z]*-[0-9A-Za-z-]*\)  *[^ ].*/--ignore-vuln \1/p' envs/accepted-advisories)
audit:  ## look every locked package up among the published advisories (asks the network; see SECURITY.md)
	@$(PYTHON) lib/environments.py audit
	@for lock in $(OUR_LOCKS) $(ENGINE_LOCKS); do echo "$$lock"; \
	.venvs/audit/bin/pip-audit -s osv --disable-pip --require-hashes --progress-spinner off $(ACCEPTED) -r $$lock || \
	case " $(ENGINE_LOCKS) " in *" $$lock "*) ;; *) status=1;; esac; done; exit $${status:-0}

lint:
	@.venvs/test/bin/ruff check .
	@.venvs/test/bin/ruff check --select E,F,W,I notebooks
	@.venvs/test/bin/mypy

clean:  ## remove what is free to make again; records, models and environments stay
	@rm -rf build figures/*/ report/tables report/index.html report/site report/compare.html report/*.tar.gz* report/smoke report/cpu report/cpu-full report/capacity report/lora report/sessions report/inside

help:  ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / && !/rules behind/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@printf "\nVariables: PROFILE=%s (smoke, cpu, ...)  DEPTH=%s (default, full)  CLUSTER=slurm  MAX_COST=dollars\n" "$(PROFILE)" "$(DEPTH)"
