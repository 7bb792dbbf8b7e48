# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The papers' claims, one cell each
#
# Five papers say what their messages do not reveal. fdgsec keeps these sentences in a ledger: literally, with what
# would have to be true for each to hold, the attack that decides, and the rule; `docs/claims.md` says which numbers had
# been seen before each was written. This notebook measures all of them and prints, for each, the sentence, the rule,
# and what the ledger's rule says of the numbers. No verdict is written in this notebook.
#
# Everything runs on the bundled `shapes` with the small encoder `mini`. **Shapes proves that the mechanics work;
# nothing here is a finding about a paper.** Claims about VGG styles stay undecided with `mini`, and claims whose images
# are missing are "not run". The findings on PACS are in `docs/results.md`.

# %%
import textwrap

import fdgsec

found = fdgsec.claims("shapes", per_domain=42, image_size=32)
claims = {claim["id"]: claim for claim in found["claims"]}


def show(name: str) -> None:
    """Print a claim: the paper's words, what would have to be true, what decides, the numbers and the verdict."""
    claim = claims[name]
    print(f"{claim['paper']}, section {claim['section']}")
    for quote in claim["quotes"]:
        print(textwrap.fill(f'"{quote}"', 110, initial_indent="  ", subsequent_indent="  "))
    print(textwrap.fill(f"holds if: {claim['holds_if']}", 110, subsequent_indent="    "))
    for criterion in claim["criteria"]:
        print(f"decided by {claim['attack']} on {claim['target']}: {criterion}")
    for column in claim.get("columns", ()):
        for row in column["seeds"]:
            if row.get("value") is not None:
                low, high = (row[end] if row[end] is not None else float("nan") for end in ("low", "high"))
                chance = "" if row["chance"] is None else f", chance {row['chance']:.3f}"
                print(f"{column['encoder']}: {row['measurement']} {row['value']:.3f} [{low:.3f}, {high:.3f}]{chance}")
    print(f"VERDICT on shapes: {claim['verdict']}", f"({claim['reason']})" if claim["reason"] else "")


# %% [markdown]
# ## CCST

# %%
show("ccst-outsider-reconstruction")

# %%
show("ccst-client-reconstruction")

# %%
show("ccst-content")

# %%
show("ccst-dataset")

# %%
show("ccst-no-spatial-structure")

# %%
show("ccst-same-style")

# %% [markdown]
# ## StableFDG

# %%
show("stablefdg-labels")

# %%
show("stablefdg-privacy")

# %% [markdown]
# ## FedDAG

# %%
show("feddag-generators")

# %%
show("feddag-privacy")

# %% [markdown]
# ## FISC

# %%
show("fisc-reconstruction")

# %%
show("fisc-no-additional-risk")

# %%
show("fisc-conceals-clients")

# %%
show("fisc-less-inference-between-clients")

# %%
show("fisc-class-information")

# %%
show("fisc-noise")

# %% [markdown]
# ## FedAlign

# %%
show("fedalign-summaries")

# %%
show("fedalign-reconstruction")

# %% [markdown]
# ## All of them
#
# Nothing was left out: the ledger has no claim that is not shown above.

# %%
verdicts = [claim["verdict"] for claim in claims.values()]
print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))
