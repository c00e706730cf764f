import sys, csv
sys.path.insert(0, 'reports/scripts')
import numpy as np
from portfolio_regret import TOKENS, WORLDS, documents
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.models.structure import layers_of
world, tasks, count, sizes, out = sys.argv[1], sys.argv[2].split(','), int(sys.argv[3]), [int(x) for x in sys.argv[4].split(',')], sys.argv[5]
of = WORLDS[world]; model = load_folder(str(of.folder), of.dtype, False); L = engine.layer_count(model)
layer = layers_of(model)[0]
a = sum(x.numel() for x in layer.self_attn.parameters()); m = sum(x.numel() for x in layer.mlp.parameters()); A=a/(a+m); print('attention share',A)
def price(u): return {'attention':A,'mlp':1-A}[u.split('.')[1]] if '.' in u else 1
def pick(score, gone, need):
    """least sum with price >= need from scores by half"""
    at=sorted((u for u in score if u.endswith('attention')),key=score.get); ml=sorted((u for u in score if u.endswith('mlp')),key=score.get)
    best=None
    for k in range(len(at)+1):
        j=max(0,int(np.ceil((need-k*A)/(1-A)-1e-9)))
        if j>len(ml): continue
        s=sum(score[u] for u in at[:k]+ml[:j])
        if best is None or s<best[0]: best=(s,at[:k]+ml[:j])
        if k*A>=need: break
    return best[1]
rows=[]
for task in tasks:
    pool, test = documents(world, task)
    ns = np.random.default_rng(0).permutation(len(pool.samples))[:count]
    first = tuple(pool.samples[n] for n in ns)
    def losses(samples, sets):
        with engine.opened(model, samples, TOKENS, False) as s:
            s.measure(range(len(samples)), {c.removed: c for c in map(Candidate, sets)})
            r={}
            for g in sets:
                seen=[s.scores.sample(g,n) for n in range(len(samples))]
                r[g]=(np.mean([x['nll'] for x in seen]), np.mean([x.get('correct_norm',x['correct']) for x in seen]))
            return r
    found={}
    layers=[str(l) for l in range(L)]; both=[f'{l}.{h}' for l in range(L) for h in ('attention','mlp')]
    def scores(units, gone):
        l=losses(first,[gone,*(gone|{u} for u in units if u not in gone)])
        return {u:l[gone|{u}][0]-l[gone][0] for u in units if u not in gone}
    s0=scores(layers,frozenset()); h0=scores(both,frozenset())
    gone=gboth=frozenset()
    for n in range(1,max(sizes)+1):
        s=s0 if n==1 else scores(layers,gone); gone=gone|{min(s,key=s.get)}
        h=h0 if n==1 else scores(both,gboth); gboth=gboth|set(pick(h,gboth,n-sum(map(price,gboth))))
        if n in sizes:
            found['layers one_shot',n]=frozenset(sorted(s0,key=s0.get)[:n]); found['layers iterative',n]=gone
            found['both one_shot',n]=frozenset(pick(h0,frozenset(),n)); found['both iterative',n]=gboth
    t=losses(test.samples,[frozenset(),*dict.fromkeys(found.values())])
    for (kind,size),g in found.items():
        rows.append([task,kind,size,round(sum(map(price,g)),2),' '.join(sorted(g,key=lambda u:(int(u.split('.')[0]),u))),*t[g],*t[frozenset()]]); print(*[f'{x:.3f}' if isinstance(x,float) else x for x in rows[-1]],flush=True)
    csv.writer(open(out,'w')).writerows(rows)
