"""A rank of torch.distributed whose rank 0 ends at once; the others sleep and then use the store.

Arguments: the others' sleep in seconds, and whether rank 0 takes leave ("destroy") or just ends ("exit").
"""

import sys
import time

import torch.distributed as dist

seconds, leave = float(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    store.set("greeting", "from rank 0")
    if leave == "destroy":
        dist.destroy_process_group()
    sys.exit(0)
time.sleep(seconds)
greeting = store.get("greeting").decode()
store.set("answer", greeting)
store.add("answers", 1)
dist.destroy_process_group()
print(f"read '{greeting}' and left", flush=True)
